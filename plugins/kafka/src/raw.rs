//! Two calls into the client library that its Rust side does not offer, and nothing else that is unsafe:
//! whether a record that failed may have been stored all the same, and headers whose names are not UTF-8
//! (the Rust side panics on those, and anybody may write them).
#![allow(
    unsafe_code,
    reason = "the Rust side of the client library lacks these two calls; each block says why it is sound"
)]

use rdkafka::bindings::{
    rd_kafka_header_get_all, rd_kafka_headers_t, rd_kafka_message_headers, rd_kafka_message_status,
    rd_kafka_msg_status_t, rd_kafka_resp_err_t,
};
use rdkafka::message::BorrowedMessage;
use std::ffi::CStr;
use std::ptr;

/// Whether a record that failed may have been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It was never sent, or the broker said that it did not store it.
    No,
    /// It was sent, and nobody said what became of it.
    Maybe,
}

/// What the client library knows about a record in its delivery report.
pub fn stored(report: &BorrowedMessage<'_>) -> Stored {
    // SAFETY: the pointer is that of a delivery report which `report` keeps alive; the call only reads it.
    let status = unsafe { rd_kafka_message_status(report.ptr()) };
    match status {
        rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Stored::No,
        _ => Stored::Maybe,
    }
}

/// A record's headers, in order. A name that is not UTF-8 is mended with replacement characters, and a
/// header without a value is empty.
pub fn headers(message: &BorrowedMessage<'_>) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut headers: *mut rd_kafka_headers_t = ptr::null_mut();
    // SAFETY: the pointer is that of a message which `message` keeps alive; the headers it gives belong to
    // that message and are read below, while it lives.
    let error = unsafe { rd_kafka_message_headers(message.ptr(), &raw mut headers) };
    if error != rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR || headers.is_null() {
        return all;
    }
    loop {
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        // SAFETY: `headers` is valid as said above; an index past the end is answered with an error.
        let error = unsafe {
            rd_kafka_header_get_all(
                headers,
                all.len(),
                &raw mut name,
                &raw mut value,
                &raw mut size,
            )
        };
        if error != rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR || name.is_null() {
            return all;
        }
        // SAFETY: names end with a zero byte, which the library adds itself, and live with the message.
        let name = unsafe { CStr::from_ptr(name) };
        let value = if value.is_null() || size == 0 {
            Vec::new()
        } else {
            // SAFETY: the library gave this address with this length, and both live with the message.
            unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) }.to_vec()
        };
        all.push((name.to_string_lossy().into_owned(), value));
    }
}
