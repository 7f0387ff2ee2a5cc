"""Secure aggregation: the server learns the sum of the uploads of a round, and no single upload.

The protocol is that of Bonawitz et al. (CCS 2017, "Practical Secure Aggregation for
Privacy-Preserving Machine Learning"), Figure 4, in the variant against active adversaries. This
package has both parties as state machines without any input or output; the engines carry their
messages. Numbers are unsigned 64-bit integers; all sums are modulo 2**64.
"""
