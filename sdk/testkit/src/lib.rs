//! Conformance kit: drives a connector against a real server and counts effects.
