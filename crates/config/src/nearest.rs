//! The nearest known name to one that was mistyped.

/// A word further than this many edits from every known one gets no suggestion; also a third of
/// its length, so that short words do not match at random.
const MAX_EDITS: usize = 3;

/// The known name nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let allowed = MAX_EDITS.min((word.chars().count() / 3).max(1));
    known
        .into_iter()
        .map(|name| {
            let near = name.to_lowercase();
            let edits = edits(&lower, &near);
            // `retires` for `retry`, `max_retries` for `retry`: a shared beginning counts for more
            // than the letters that follow it.
            let shared = lower
                .chars()
                .zip(near.chars())
                .take_while(|(a, b)| a == b)
                .count();
            let close = edits <= allowed || (shared >= 3 && edits <= MAX_EDITS + 1);
            (close, edits, name)
        })
        .filter(|(close, _, _)| *close)
        .min_by_key(|(_, edits, _)| *edits)
        .map(|(_, _, name)| name)
}

/// The sentence that suggests the nearest name, if there is one.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, known).map(|name| format!("did you mean `{name}`?"))
}

/// `a`, `b` or `c`, each in backticks.
pub fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        None => "nothing".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// Optimal string alignment distance: insertions, deletions, replacements, swapped neighbours.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, ca) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let at = |row: &[usize], k: usize| row.get(k).copied().unwrap_or(usize::MAX - 1);
            let mut best = (at(&row, j) + usize::from(ca != *cb))
                .min(at(&row, j + 1) + 1)
                .min(at(&next, j) + 1);
            if j > 0 && last == Some(*cb) && b.get(j - 1) == Some(&ca) {
                best = best.min(at(&before, j - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(ca);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_and_no_other() {
        let known = ["retry", "batch", "timeout", "order", "id", "send"];
        assert_eq!(nearest("retires", known), Some("retry"));
        assert_eq!(nearest("bacth", known), Some("batch"));
        assert_eq!(nearest("Timeout", known), Some("timeout"));
        assert_eq!(nearest("sends", known), Some("send"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(edits("abcd", "acbd"), 1);
        assert_eq!(edits("", "abc"), 3);
    }
}
