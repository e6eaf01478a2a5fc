"""Writers of the documents and files that follow from what the code and the spec declare.

They are outside of the library because components never import each other, and these read them all.
"""
