"""What uploads tell about the samples behind them: attacks on a finished run, measured."""
