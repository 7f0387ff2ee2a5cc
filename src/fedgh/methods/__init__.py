"""The methods, one file each. A new one is a file beside these and a line below."""

from fedgh.core.method import Method
from fedgh.methods.fedgh import FedGH
from fedgh.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FedGH,
        Standalone,
    )
}
