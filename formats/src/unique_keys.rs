//! JSON whose objects have each key once. If a key occurs twice, serde_json would silently use the last value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value in which no object has a key twice.
pub struct UniqueKeys(pub Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueKeys, D::Error> {
        deserializer.deserialize_any(AnyValue).map(UniqueKeys)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeys(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.escape_debug().take(100).collect();
                return Err(A::Error::custom(format_args!("duplicate field `{shown}`")));
            }
            let UniqueKeys(value) = fields.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_refused_where_it_is() {
        let text = r#"{"a": [1, -2, 2.5, true, null, "x"], "b": {"a": 1e300}}"#;
        let UniqueKeys(read) = serde_json::from_str(text).expect("sound");
        assert_eq!(read, serde_json::from_str::<Value>(text).expect("sound"));
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"a": {"b": 1, "a": 2, "a": 2}}]"#] {
            let refused = serde_json::from_str::<UniqueKeys>(text).err().expect("twice");
            assert!(refused.to_string().starts_with("duplicate field `a` at line 1"), "{refused}");
        }
    }
}
