package codec

import "google.golang.org/protobuf/encoding/protowire"

// Message reads the fields of a complete protobuf message:
//
//	m := codec.NewMessage(b)
//	for m.Next() {
//		switch m.Num {
//
// The loop ends at the first error, which is then in Err. The body of the loop may set Err.
type Message struct {
	Num   protowire.Number
	Type  protowire.Type
	Whole []byte // the field with its tag
	Value []byte // the content of a length-delimited field
	N     uint64 // the value of a varint
	Err   error  // ErrProtobuf for malformed input

	rest []byte
}

// NewMessage returns a reader of b.
func NewMessage(b []byte) Message { return Message{rest: b} }

// Next reads a field. It returns false at the end and after an error.
func (m *Message) Next() bool {
	if len(m.rest) == 0 || m.Err != nil {
		return false
	}
	num, typ, tag := protowire.ConsumeTag(m.rest)
	if tag < 0 {
		m.Err = ErrProtobuf
		return false
	}
	size := 0
	m.Num, m.Type, m.Value, m.N = num, typ, nil, 0
	switch typ {
	case protowire.BytesType:
		m.Value, size = protowire.ConsumeBytes(m.rest[tag:])
	case protowire.VarintType:
		m.N, size = protowire.ConsumeVarint(m.rest[tag:])
	default:
		size = protowire.ConsumeFieldValue(num, typ, m.rest[tag:])
	}
	if size < 0 {
		m.Err = ErrProtobuf
		return false
	}
	m.Whole, m.rest = m.rest[:tag+size], m.rest[tag+size:]
	return true
}
