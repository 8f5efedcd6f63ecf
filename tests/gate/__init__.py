"""Tests of the throughput gate's statistics: error rates over many drawn measurements. They take half a minute."""
