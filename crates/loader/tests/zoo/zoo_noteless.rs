//! A shared library that is no plugin.
