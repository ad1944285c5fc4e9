"""For those who have Hugging Face's transformers (the extra `hf`)."""
