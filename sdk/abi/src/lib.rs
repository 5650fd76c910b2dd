//! Wire types and vtables of the plugin boundary.
