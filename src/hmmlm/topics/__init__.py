"""HMMs with topics: a sentence has one, which tilts words and states, and moves when it ends."""

from hmmlm.topics.learning import LearntTopics, TopicSettings, learn_topics
from hmmlm.topics.lm import TopicLM, line_topics
from hmmlm.topics.value import TopicHMM

__all__ = ["LearntTopics", "TopicHMM", "TopicLM", "TopicSettings", "learn_topics", "line_topics"]
