# The service of peer-capnp.
@0xb1f5e2a0c7d94e36;

interface Echo {
  call @0 (request :Data) -> (reply :Data);
}
