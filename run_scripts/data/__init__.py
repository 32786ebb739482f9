"""Loading, checking and encoding of data sets: texts, text pairs, questions, tables, images."""
