//! The codec Checked: another codec, with keys of the types' shapes.

use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, DataModelVariant, NamedType};
use strait::view::InPlace;

use super::{Codec, Decode, Encode, Malformed, Postcard};
use crate::output::Output;

/// A codec for types that derive `postcard_schema::Schema`: encodes as `C`, and the first message of the channel has
/// keys of both types. If the two programs have different definitions, their first receive fails with an error that
/// names both types. A peer that sends no first message, such as a program in Python, is not compared.
///
/// The key covers the names of fields and variants, their order and their types. The names of the types, comments and
/// the paths of modules do not matter. Keys find mistakes; they are no protection against a dishonest peer.
#[derive(Clone, Copy, Debug)]
pub struct Checked<C = Postcard>(std::marker::PhantomData<C>);

impl<C: Codec<T>, T: Schema + ?Sized> Codec<T> for Checked<C> {
    const ID: u8 = C::ID;
    const SELF_DESCRIBING: bool = C::SELF_DESCRIBING;

    fn key() -> Option<u64> {
        let mut key = Key(0xCBF2_9CE4_8422_2325);
        key.add_type(T::SCHEMA);
        Some(key.0)
    }
}

impl<C: Encode<T>, T: Schema + ?Sized> Encode<T> for Checked<C> {
    #[inline]
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        C::encode(value, out)
    }
}

impl<'de, C: Decode<'de, T>, T: Schema> Decode<'de, T> for Checked<C> {
    #[inline]
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        C::decode(bytes)
    }

    fn decode_view(view: &mut InPlace<'_>, buffer: &'de mut Vec<u8>) -> Result<T, Malformed> {
        C::decode_view(view, buffer)
    }
}

/// A hash of a type's shape: 64-bit FNV-1a over a description in which each part has a length or a mark of its own.
struct Key(u64);

impl Key {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    fn add_count(&mut self, count: usize) {
        self.add(&(count as u64).to_le_bytes());
    }

    fn add_name(&mut self, name: &str) {
        self.add_count(name.len());
        self.add(name.as_bytes());
    }

    fn add_types(&mut self, types: &[&'static NamedType]) {
        self.add_count(types.len());
        types.iter().for_each(|each| self.add_type(each));
    }

    fn add_type(&mut self, named: &NamedType) {
        use DataModelType as Type;
        match named.ty {
            // A wrapper adds no bytes.
            Type::NewtypeStruct(inner) => self.add_type(inner),
            Type::Option(inner) => self.add_nested(b'?', inner),
            Type::Seq(inner) => self.add_nested(b'*', inner),
            Type::Tuple(types) | Type::TupleStruct(types) => {
                self.add(b"(");
                self.add_types(types);
            }
            Type::Map { key, val } => {
                self.add_nested(b'%', key);
                self.add_type(val);
            }
            Type::Struct(fields) => {
                self.add(b"{");
                self.add_count(fields.len());
                for field in *fields {
                    self.add_name(field.name);
                    self.add_type(field.ty);
                }
            }
            Type::Enum(variants) => {
                self.add(b"|");
                self.add_count(variants.len());
                for variant in *variants {
                    self.add_name(variant.name);
                    self.add_variant(variant.ty);
                }
            }
            // The name of a primitive type.
            other => self.add_name(&format!("{other:?}")),
        }
    }

    fn add_nested(&mut self, mark: u8, inner: &NamedType) {
        self.add(&[mark]);
        self.add_type(inner);
    }

    fn add_variant(&mut self, variant: &DataModelVariant) {
        match variant {
            DataModelVariant::UnitVariant => self.add(b"."),
            DataModelVariant::NewtypeVariant(inner) => self.add_nested(b',', inner),
            DataModelVariant::TupleVariant(types) => {
                self.add(b"(");
                self.add_types(types);
            }
            DataModelVariant::StructVariant(fields) => {
                self.add(b"{");
                self.add_count(fields.len());
                for field in *fields {
                    self.add_name(field.name);
                    self.add_type(field.ty);
                }
            }
        }
    }
}
