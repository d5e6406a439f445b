// Package position tracks a client's position in a collection that several clusters hold. It computes the
// requests to the clusters that continue from that position. It keeps law 7: a position that cannot be
// trusted is refused as expired, so that the client lists again. It never guesses a position.
//
// An object keeps the resourceVersion of its cluster. A merged list, a bookmark and a continue token have a
// [Vector]. It is written as one decimal number, because clients compare resourceVersions as numbers.
package position

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Limits of a vector.
const (
	MaxSlots = 32
	MaxEpoch = 9_999_999_999

	headDigits  = 11 // "1" and the epoch
	fieldDigits = 20
	plainDigits = 20
)

// Vector holds the resourceVersion of each cluster, by slot, in one epoch of the configuration that assigns
// the slots. A field of 0 means that nothing is known of the cluster yet.
type Vector struct {
	Epoch  uint64
	Fields []uint64
}

// NewVector returns a vector of zero fields. width is the highest slot plus 1.
func NewVector(epoch uint64, width int) Vector {
	return Vector{Epoch: epoch, Fields: make([]uint64, width)}
}

// At returns the field of a slot; 0 beyond the last one.
func (v Vector) At(slot int) uint64 {
	if slot >= len(v.Fields) {
		return 0
	}
	return v.Fields[slot]
}

// Raise increases a field to rv; it never decreases it.
func (v *Vector) Raise(slot int, rv uint64) {
	v.widen(slot + 1)
	v.Fields[slot] = max(v.Fields[slot], rv)
}

// widen extends a vector to at least width fields. A vector must not become narrower than the client's,
// because its number must not decrease.
func (v *Vector) widen(width int) {
	for len(v.Fields) < width {
		v.Fields = append(v.Fields, 0)
	}
}

// Clone returns an independent copy.
func (v Vector) Clone() Vector {
	return Vector{v.Epoch, append([]uint64(nil), v.Fields...)}
}

// Equal compares two vectors; missing fields are 0.
func (v Vector) Equal(o Vector) bool {
	if v.Epoch != o.Epoch {
		return false
	}
	for i := range max(len(v.Fields), len(o.Fields)) {
		if v.At(i) != o.At(i) {
			return false
		}
	}
	return true
}

// String returns the vector as one number: 1, the epoch in 10 digits, and 20 digits for each slot. The widths
// are fixed, so the number grows when a field grows.
func (v Vector) String() string { return string(v.Append(nil)) }

// Append appends the result of String.
func (v Vector) Append(dst []byte) []byte {
	dst = append(dst, '1')
	dst = pad(dst, v.Epoch, headDigits-1)
	for _, f := range v.Fields {
		dst = pad(dst, f, fieldDigits)
	}
	return dst
}

func pad(dst []byte, n uint64, width int) []byte {
	from := len(dst)
	for range width {
		dst = append(dst, '0')
	}
	for i := len(dst) - 1; n > 0 && i >= from; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
	return dst
}

// RV is the resourceVersion of a request: none, a number from one cluster, or a vector.
type RV struct {
	Vector *Vector
	Plain  uint64 // 0: absent, "" or "0"
}

// ParseRV parses a resourceVersion. It returns a 400 for anything but a 64-bit number or a vector.
func ParseRV(s string) (RV, *wire.Status) {
	if s == "" || s == "0" {
		return RV{}, nil
	}
	if strings.Trim(s, "0123456789") != "" || s[0] == '0' {
		return RV{}, badRV(s)
	}
	if len(s) <= plainDigits {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return RV{}, badRV(s)
		}
		return RV{Plain: n}, nil
	}
	rest := len(s) - headDigits
	if rest < fieldDigits || rest%fieldDigits != 0 || rest/fieldDigits > MaxSlots || s[0] != '1' {
		return RV{}, badRV(s)
	}
	epoch, err := strconv.ParseUint(s[1:headDigits], 10, 64)
	if err != nil || epoch == 0 {
		return RV{}, badRV(s)
	}
	v := NewVector(epoch, rest/fieldDigits)
	for i := range v.Fields {
		field := s[headDigits+i*fieldDigits:][:fieldDigits]
		if v.Fields[i], err = strconv.ParseUint(field, 10, 64); err != nil {
			return RV{}, badRV(s)
		}
	}
	return RV{Vector: &v}, nil
}

func badRV(s string) *wire.Status {
	return BadRequest(fmt.Sprintf("invalid resourceVersion %.60q", s))
}

// BadRequest returns a 400.
func BadRequest(message string) *wire.Status {
	return &wire.Status{Code: 400, Reason: wire.ReasonBadRequest, Message: "mca: " + message}
}

// Expired returns a 410, after which a client lists again.
func Expired(message string) *wire.Status {
	return &wire.Status{Code: 410, Reason: wire.ReasonExpired, Message: "mca: " + message}
}

// ahead returns the 504 for a position of a newer configuration.
func ahead(epoch, ours uint64) *wire.Status {
	return &wire.Status{Code: 504, Reason: wire.ReasonTimeout, Cause: wire.CauseTooLarge, RetryAfter: 1,
		Message: fmt.Sprintf("mca: Too large resource version: of epoch %d, current: %d", epoch, ours)}
}
