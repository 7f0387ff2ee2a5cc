"""What class means tell about the samples behind them: attacks on a finished run, measured."""
