//! Finds, checks and loads plugins, and calls them.
