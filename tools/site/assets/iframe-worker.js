// The search of the site is a Worker, and browsers start no Worker from file://. This replacement
// runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((loaded, failed) => {
        const script = this.inside.document.createElement("script")
        script.onload = loaded
        script.onerror = failed
        script.src = url
        this.inside.document.body.append(script)
      })
    }

    async postMessage(data) {
      await this.ready
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {}
  }
  window.Worker = window.IFrameWorker
}
