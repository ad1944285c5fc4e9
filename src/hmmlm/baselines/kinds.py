"""The neural models by name: modules with `Settings` that `build`, and `RECIPES` by optimiser."""

from hmmlm.baselines import awd_lstm, decoder, feed_forward, hmm_rnn, lstm

NEURAL = {
    "feed_forward": feed_forward,
    "lstm": lstm,
    "awd_lstm": awd_lstm,
    "hmm_rnn": hmm_rnn,
    "decoder": decoder,
}
