-- The schema registry stores in a database of its own beside Rowcall's. Run once, by the image's first start.
CREATE DATABASE registry;
