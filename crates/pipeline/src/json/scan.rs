//! Scans a text as JSON, strictly, into a flat list of nodes.

use super::{Kind, MAX_DEPTH, Node};

/// The nodes of a text, or nothing when it is not JSON or nested too deeply.
pub(super) fn scan(text: &str) -> Option<Vec<Node>> {
    let mut scanner = Scanner {
        text: text.as_bytes(),
        at: 0,
        nodes: Vec::new(),
    };
    scanner.space();
    scanner.value(0)?;
    scanner.space();
    (scanner.at == text.len()).then_some(scanner.nodes)
}

/// Scans a text, node by node.
struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    nodes: Vec<Node>,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn open(&mut self, kind: Kind) -> Option<usize> {
        let index = self.nodes.len();
        let start = u32::try_from(self.at).ok()?;
        self.nodes.push(Node {
            kind,
            start,
            end: start,
            next: 0,
        });
        Some(index)
    }

    fn close(&mut self, index: usize) -> Option<()> {
        let end = u32::try_from(self.at).ok()?;
        let next = u32::try_from(self.nodes.len()).ok()?;
        let node = self.nodes.get_mut(index)?;
        node.end = end;
        node.next = next;
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth >= MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string(),
            b't' => self.word(b"true", Kind::True),
            b'f' => self.word(b"false", Kind::False),
            b'n' => self.word(b"null", Kind::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Option<()> {
        let index = self.open(kind)?;
        self.text.get(self.at..)?.starts_with(word).then_some(())?;
        self.at += word.len();
        self.close(index)
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let index = self.open(Kind::Array)?;
        self.at += 1;
        self.space();
        if self.take(b']').is_some() {
            return self.close(index);
        }
        loop {
            self.value(depth + 1)?;
            self.space();
            if self.take(b']').is_some() {
                return self.close(index);
            }
            self.take(b',')?;
            self.space();
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let index = self.open(Kind::Object)?;
        self.at += 1;
        self.space();
        if self.take(b'}').is_some() {
            return self.close(index);
        }
        loop {
            (self.peek()? == b'"').then_some(())?;
            self.string()?;
            self.space();
            self.take(b':')?;
            self.space();
            self.value(depth + 1)?;
            self.space();
            if self.take(b'}').is_some() {
                return self.close(index);
            }
            self.take(b',')?;
            self.space();
        }
    }

    fn string(&mut self) -> Option<()> {
        let index = self.open(Kind::Plain)?;
        let start = self.at;
        let mut escaped = false;
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    break;
                }
                b'\\' => {
                    escaped = true;
                    // What follows is checked below; here it only must not end the string.
                    self.at += 2;
                }
                0..=0x1f => return None,
                _ => self.at += 1,
            }
        }
        if escaped {
            // Unknown escapes and lone surrogates have no text: such a body is not JSON here.
            let raw = self.text.get(start..self.at)?;
            serde_json::from_slice::<String>(raw).ok()?;
            self.nodes.get_mut(index)?.kind = Kind::Escaped;
        }
        self.close(index)
    }

    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > start).then(|| self.at - start)
    }

    fn number(&mut self) -> Option<()> {
        let index = self.open(Kind::Number)?;
        let _ = self.take(b'-');
        let leading_zero = self.peek()? == b'0';
        let count = self.digits()?;
        if leading_zero && count > 1 {
            return None;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if self.take(b'+').is_none() {
                let _ = self.take(b'-');
            }
            self.digits()?;
        }
        self.close(index)
    }
}
