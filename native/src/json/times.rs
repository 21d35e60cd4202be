//! Dates and times in JSON: numbers, ISO 8601 text, and the arrays of Java's client.

use super::{text_of, Cursor, Number, NumberKind, TimeForm, ARRAY};
use crate::values::scaled;
use crate::wire::{Result, Unusual};

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Days since 1970; an empty string is null.
pub fn date(cursor: &mut Cursor) -> Result<Option<i64>> {
    match cursor.peek()? {
        b'"' => match cursor.quoted()?.0 {
            b"" => Ok(None),
            text => {
                let mut text = Text(text);
                let days = text.date()?;
                text.end().map(|()| Some(days))
            }
        },
        b'[' => match fields(cursor)? {
            ([year, month, number, ..], 3) => day(year, month, number).map(Some),
            _ => Err(Unusual),
        },
        _ => cursor.number()?.whole().map(Some),
    }
}

/// Microseconds since 1970, or nanoseconds since midnight; an empty string is null.
pub fn time(cursor: &mut Cursor, form: TimeForm, factor: i64, divisor: i64) -> Result<Option<i64>> {
    let found = match cursor.peek()? {
        b'"' => match cursor.quoted()?.0 {
            b"" => return Ok(None),
            text => text_time(Text(text), form)?,
        },
        b'[' => array_time(cursor, form)?,
        _ => {
            let number = cursor.number()?;
            match (number.kind, form) {
                (NumberKind::Point, TimeForm::JavaUtc) => micros(number)?,
                (NumberKind::Point, _) => return Err(Unusual),
                _ => scaled(number.whole()?, factor, divisor)?,
            }
        }
    };
    Ok(Some(found))
}

fn text_time(mut text: Text, form: TimeForm) -> Result<i64> {
    if form == TimeForm::OfDay {
        let nanos = text.time_of_day()?;
        return text.end().map(|()| nanos);
    }
    let days = text.date()?;
    if !text.has(b'T') && !text.has(b' ') {
        return Err(Unusual);
    }
    let micros = days * MICROS_PER_DAY + text.time_of_day()? / 1000;
    let offset = if form == TimeForm::Local { 0 } else { text.zone()? };
    text.end().map(|()| micros - offset * 60_000_000)
}

fn array_time(cursor: &mut Cursor, form: TimeForm) -> Result<i64> {
    let (fields, count) = fields(cursor)?;
    match form {
        TimeForm::OfDay if (2..=4).contains(&count) => {
            nanos_of_day(fields[0], fields[1], fields[2], fields[3])
        }
        TimeForm::Local if count >= 5 => {
            let days = day(fields[0], fields[1], fields[2])?;
            let nanos = nanos_of_day(fields[3], fields[4], fields[5], fields[6])?;
            Ok(days * MICROS_PER_DAY + nanos / 1000)
        }
        _ => Err(Unusual),
    }
}

/// Up to seven integers of an array, and how many there are.
fn fields(cursor: &mut Cursor) -> Result<([i64; 7], usize)> {
    let (mut fields, mut count) = ([0; 7], 0);
    cursor.parts(ARRAY, |cursor| {
        let number = cursor.number()?;
        if number.kind != NumberKind::Whole {
            return Err(Unusual);
        }
        *fields.get_mut(count).ok_or(Unusual)? = number.whole()?;
        count += 1;
        Ok(())
    })?;
    Ok((fields, count))
}

/// Days since 1970 of a date in the years 1 to 9999.
fn day(year: i64, month: i64, day: i64) -> Result<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=days).contains(&day) {
        return Err(Unusual);
    }
    // Years begin in March, so that a leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before = 365 * year + year / 4 - year / 100 + year / 400;
    Ok(before + (153 * month + 2) / 5 + day - 1 - 719_468)
}

fn nanos_of_day(hours: i64, minutes: i64, seconds: i64, nanos: i64) -> Result<i64> {
    let parts = [(hours, 24), (minutes, 60), (seconds, 60), (nanos, 1_000_000_000)];
    if parts.iter().any(|(number, limit)| !(0..*limit).contains(number)) {
        return Err(Unusual);
    }
    Ok(((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanos)
}

/// Microseconds of a positive number of seconds with a point.
fn micros(number: Number) -> Result<i64> {
    let (seconds, fraction) = text_of(number.text).split_once('.').ok_or(Unusual)?;
    if seconds.starts_with('-') || seconds.len() > 12 || fraction.len() > 9 {
        return Err(Unusual);
    }
    let seconds: i64 = seconds.parse().map_err(|_| Unusual)?;
    let fraction: i64 = format!("{fraction:0<9}").parse().map_err(|_| Unusual)?;
    Ok(seconds * 1_000_000 + fraction / 1000)
}

/// The rest of a text in ISO 8601.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn has(&mut self, letter: u8) -> bool {
        let rest = self.0.strip_prefix(&[letter]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, letter: u8) -> Result<()> {
        self.has(letter).then_some(()).ok_or(Unusual)
    }

    fn end(&self) -> Result<()> {
        self.0.is_empty().then_some(()).ok_or(Unusual)
    }

    /// A number of so many digits.
    fn digits(&mut self, count: usize) -> Result<i64> {
        let (digits, rest) = self.0.split_at_checked(count).ok_or(Unusual)?;
        self.0 = rest;
        digits.iter().try_fold(0, |number, digit| {
            digit.is_ascii_digit().then(|| 10 * number + i64::from(digit - b'0')).ok_or(Unusual)
        })
    }

    fn date(&mut self) -> Result<i64> {
        let year = self.digits(4)?;
        self.expect(b'-')?;
        let month = self.digits(2)?;
        self.expect(b'-')?;
        day(year, month, self.digits(2)?)
    }

    /// Hours and minutes, and seconds with up to nine decimals if they are there.
    fn time_of_day(&mut self) -> Result<i64> {
        let hours = self.digits(2)?;
        self.expect(b':')?;
        let minutes = self.digits(2)?;
        let (mut seconds, mut nanos) = (0, 0);
        if self.has(b':') {
            seconds = self.digits(2)?;
            if self.has(b'.') || self.has(b',') {
                let count = self.0.iter().take_while(|letter| letter.is_ascii_digit()).count();
                if !(1..=9).contains(&count) {
                    return Err(Unusual);
                }
                nanos = self.digits(count)? * 10i64.pow(9 - count as u32);
            }
        }
        nanos_of_day(hours, minutes, seconds, nanos)
    }

    /// Minutes east of Greenwich; without a zone, none.
    fn zone(&mut self) -> Result<i64> {
        let sign = match self.0.first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => {
                self.has(b'Z');
                return Ok(0);
            }
        };
        self.0 = &self.0[1..];
        let hours = self.digits(2)?;
        let minutes = if self.has(b':') || !self.0.is_empty() { self.digits(2)? } else { 0 };
        Ok(sign * (60 * hours + minutes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (date, wanted) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2024, 3, 1), 19_783),
            ((1, 1, 1), -719_162),
            ((9999, 12, 31), 2_932_896),
        ] {
            assert_eq!(day(date.0, date.1, date.2), Ok(wanted));
        }
        for wrong in [(2023, 2, 29), (1900, 2, 29), (2024, 4, 31), (0, 1, 1), (2024, 13, 1)] {
            assert_eq!(day(wrong.0, wrong.1, wrong.2), Err(Unusual));
        }
    }

    #[test]
    fn texts_are_read_to_their_end() {
        let time = |text: &str, form| text_time(Text(text.as_bytes()), form);
        let wanted = 19_782 * MICROS_PER_DAY + 47_655_123_456;
        for zone in ["", "Z", "+00", "-0000", "+00:00"] {
            let text = format!("2024-02-29T13:14:15.123456789{zone}");
            assert_eq!(time(&text, TimeForm::Utc), Ok(wanted));
            assert_eq!(time(&text, TimeForm::Local).is_ok(), zone.is_empty());
        }
        assert_eq!(time("1970-01-01 00:30+00:30", TimeForm::Utc), Ok(0));
        assert_eq!(time("00:00:01,5", TimeForm::OfDay), Ok(1_500_000_000));
        let of_day =
            ["", "24:00", "1:00", "00:01,", "00:00:60", "00:00:00.", "00:00:00.0123456789"];
        for wrong in of_day {
            assert_eq!(time(wrong, TimeForm::OfDay), Err(Unusual), "{wrong}");
        }
        for wrong in
            ["1970-01-01", "1970-01-01T00:00+1", "1970-01-01T00:00+01:", "1970-01-01T00:00Zx"]
        {
            assert_eq!(time(wrong, TimeForm::Utc), Err(Unusual), "{wrong}");
        }
    }

    #[test]
    fn seconds_with_a_point_are_positive() {
        let seconds =
            |text: &'static str| micros(Number { text: text.as_bytes(), kind: NumberKind::Point });
        assert_eq!(seconds("1.000001999"), Ok(1_000_001));
        assert_eq!(seconds("-1.5"), Err(Unusual));
    }
}
