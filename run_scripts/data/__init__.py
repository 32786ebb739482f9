"""Loading, checking and encoding of data sets: texts, pairs, questions, tables, images."""
