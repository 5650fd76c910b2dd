//! Topic patterns on the routing key: words split by `.`; `*` is one word, `#` any number of them.

/// Words of a pattern, more than any broker's subjects have; a limit so that matching stays linear
/// in practice.
pub const MAX_PATTERN_WORDS: usize = 128;

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    words: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Literal(Box<str>),
    One,
    Any,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The byte offset of the fault, and what it is: an empty word, a wildcard that is only part of
    /// a word, or too many words.
    pub fn compile(text: &str) -> Result<Self, (usize, String)> {
        let mut words: Vec<Word> = Vec::new();
        let mut at = 0;
        for word in text.split('.') {
            words.push(match word {
                "" if text.is_empty() => return Err((0, "the pattern is empty".to_owned())),
                "" => return Err((at, format!("a word of the pattern `{text}` is empty"))),
                "*" => Word::One,
                "#" => Word::Any,
                word if word.contains(['*', '#']) => {
                    return Err((
                        at,
                        format!(
                            "in the pattern `{text}` the word `{word}` mixes letters and a \
                             wildcard: `*` and `#` stand for whole words"
                        ),
                    ));
                }
                word => Word::Literal(word.into()),
            });
            at += word.len() + 1;
        }
        if words.len() > MAX_PATTERN_WORDS {
            return Err((
                0,
                format!("the pattern has more than {MAX_PATTERN_WORDS} words"),
            ));
        }
        words.dedup_by(|a, b| *a == Word::Any && *b == Word::Any);
        Ok(Self { words })
    }

    /// Whether a message without a routing key matches: only a lone `#` does.
    #[must_use]
    pub fn matches_none(&self) -> bool {
        self.words == [Word::Any]
    }

    /// Whether a routing key matches. Greedy with one step back, so the cost is at most words of
    /// the pattern times words of the key.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let mut words = key.split('.');
        let mut pattern = self.words.as_slice();
        // Where to go on when a guess for the last `#` was wrong: the pattern after it and the key
        // from the next word on.
        let mut retry: Option<(&[Word], std::str::Split<'_, char>)> = None;
        loop {
            let rest = words.clone();
            match (pattern.split_first(), words.next()) {
                (Some((Word::Any, after)), _) => {
                    retry = Some((after, rest.clone()));
                    pattern = after;
                    words = rest;
                    continue;
                }
                (Some((Word::One, after)), Some(_)) => {
                    pattern = after;
                    continue;
                }
                (Some((Word::Literal(literal), after)), Some(word)) if **literal == *word => {
                    pattern = after;
                    continue;
                }
                (None, None) => return true,
                _ => {}
            }
            let Some((after, from)) = &mut retry else {
                return false;
            };
            if from.next().is_none() {
                return false;
            }
            pattern = after;
            words = from.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), _) => {
                naive(rest, key) || key.split_first().is_some_and(|(_, k)| naive(pattern, k))
            }
            (Some((&"*", rest)), Some((_, k))) => naive(rest, k),
            (Some((word, rest)), Some((w, k))) => word == w && naive(rest, k),
            _ => false,
        }
    }

    #[test]
    fn wildcards_stand_for_words() {
        for (pattern, key, expected) in [
            ("payment.*", "payment.completed", true),
            ("payment.*", "payment", false),
            ("payment.*", "payment.a.b", false),
            ("payment.#", "payment", true),
            ("payment.#", "payment.a.b", true),
            ("payment.#", "payments.a", false),
            ("#", "", true),
            ("#", "a.b", true),
            ("*", "", true),
            ("a.#.b", "a.b", true),
            ("a.#.b", "a.x.b.y.b", true),
            ("a.#.b", "a.x.b.y", false),
            ("#.#", "a", true),
            ("a", "A", false),
        ] {
            let compiled = Pattern::compile(pattern).unwrap();
            assert_eq!(compiled.matches(key), expected, "{pattern} on {key}");
        }
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for (pattern, at) in [
            ("", 0),
            ("a..b", 2),
            ("a.", 2),
            (".a", 0),
            ("a.b*", 2),
            ("pay#", 0),
        ] {
            assert_eq!(Pattern::compile(pattern).unwrap_err().0, at, "{pattern}");
        }
        assert!(Pattern::compile(&vec!["*"; MAX_PATTERN_WORDS + 1].join(".")).is_err());
    }

    #[test]
    fn many_wildcards_cost_little() {
        let pattern = Pattern::compile(&vec!["#.a"; 60].join(".")).unwrap();
        let key = vec!["a"; 20_000].join(".") + ".b";
        assert!(!pattern.matches(&key));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn agrees_with_the_naive_matcher(
            pattern in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "#"]), 1..8),
            key in prop::collection::vec(prop::sample::select(vec!["a", "b", "c", ""]), 1..8),
        ) {
            let compiled = Pattern::compile(&pattern.join(".")).unwrap();
            prop_assert_eq!(compiled.matches(&key.join(".")), naive(&pattern, &key));
        }
    }
}
