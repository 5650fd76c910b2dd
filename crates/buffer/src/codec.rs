//! Little-endian fields written to and read from byte buffers, with every length checked.

/// Appends fields to a byte vector.
pub(crate) trait Put {
    fn put_u8(&mut self, v: u8);
    fn put_u16(&mut self, v: u16);
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
    fn put_raw(&mut self, v: &[u8]);
    /// A u32 length and the bytes. Lengths are bounded by the record limit long before u32 ends.
    fn put_bytes(&mut self, v: &[u8]);
    /// A u32 length and what `write` appends: as [`put_bytes`](Self::put_bytes), without a copy.
    fn put_framed(&mut self, write: impl FnOnce(&mut Self));
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_raw(&mut self, v: &[u8]) {
        self.extend_from_slice(v);
    }
    fn put_bytes(&mut self, v: &[u8]) {
        self.put_u32(u32::try_from(v.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(v);
    }
    fn put_framed(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.len();
        self.put_u32(0);
        write(self);
        let len = u32::try_from(self.len() - at - 4).unwrap_or(u32::MAX);
        if let Some(slot) = self.get_mut(at..at + 4) {
            slot.copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// Takes fields off the front of a slice; `None` as soon as one does not fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Take<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Take<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Take { all, at: 0 }
    }
    pub(crate) fn position(&self) -> usize {
        self.at
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.all.len()
    }
    pub(crate) fn raw(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let part = self.all.get(self.at..end)?;
        self.at = end;
        Some(part)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.raw(N)?.try_into().ok()
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()?;
        self.raw(usize::try_from(n).ok()?)
    }
    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}
