//! Numbers in as many bytes as they need: seven bits a byte, the lowest first; the high bit is set in all but the last.

/// Appends a number.
pub(crate) fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a number of either sign: 0, -1, 1, -2, … become 0, 1, 2, 3, ….
pub(crate) fn write_signed(bytes: &mut Vec<u8>, number: i64) {
    write(bytes, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Removes a number from the front; `None` if the bytes end before, or if the number is not in its shortest form.
pub(crate) fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return (*byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

/// Removes a number of either sign from the front.
pub(crate) fn read_signed(bytes: &mut &[u8]) -> Option<i64> {
    let number = read(bytes)?;
    Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, 1 << 62, u64::MAX] {
            let mut bytes = Vec::new();
            write(&mut bytes, number);
            write_signed(&mut bytes, number.cast_signed());
            let mut rest = &bytes[..];
            assert_eq!(read(&mut rest), Some(number));
            assert_eq!(read_signed(&mut rest), Some(number.cast_signed()));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let nine = [0xff_u8; 9];
        for bytes in [&[][..], &[0x80], &[0x80, 0], &[&nine[..], &[2]].concat(), &[0xff; 11]] {
            assert_eq!(read(&mut &bytes[..]), None, "{bytes:?}");
        }
    }
}
