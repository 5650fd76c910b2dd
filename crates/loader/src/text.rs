//! What a plugin says, cut to what people read: it goes into events, the log and Failed messages.

use std::borrow::Cow;

/// Longest text kept of what a plugin said. Far more than a sentence; a server's whole answer is no
/// sentence.
pub const TEXT_MAX_BYTES: usize = 8 << 10;

/// Bytes as text, at most [`TEXT_MAX_BYTES`] of them; what is no UTF-8 is replaced.
pub(crate) fn said(bytes: &[u8]) -> String {
    // Not all of it is looked at: it may be very long.
    let (start, cut) = match bytes.get(..TEXT_MAX_BYTES) {
        Some(start) if bytes.len() > TEXT_MAX_BYTES => (start, true),
        _ => (bytes, false),
    };
    let text = String::from_utf8_lossy(start);
    if !cut {
        return text.into_owned();
    }
    // The cut may have gone through a character.
    let whole = match text {
        Cow::Borrowed(text) => text,
        Cow::Owned(ref text) => text.trim_end_matches('\u{fffd}'),
    };
    format!("{whole}… ({} bytes)", bytes.len())
}

/// The same of a text that has arrived as one.
#[must_use]
pub fn shortened(text: String) -> String {
    if text.len() <= TEXT_MAX_BYTES {
        return text;
    }
    said(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters_and_say_how_long_they_were() {
        assert_eq!(said(b"short \xff"), "short \u{fffd}");
        assert_eq!(shortened("ü".repeat(4_000)), "ü".repeat(4_000));
        let long = "ü".repeat(10_000);
        let cut = shortened(format!("x{long}"));
        assert!(
            cut.ends_with("ü… (20001 bytes)"),
            "{}",
            &cut[cut.len() - 40..]
        );
        assert!(cut.len() < TEXT_MAX_BYTES + 40);
    }
}
