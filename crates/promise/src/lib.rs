//! Promises, levels two to four: resolved, inspected, end to end.
