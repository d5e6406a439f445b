// Package position says where a client stands in a collection that several
// clusters keep, and what each of them must be asked to go on from there. It
// keeps law 7: a position that cannot be trusted is refused as expired, so that
// the client reads again, and is never guessed.
//
// An object keeps the resourceVersion that its cluster gave it. A merged list, a
// bookmark and a continue token have a [Vector], written as one decimal number,
// because clients compare resourceVersions as numbers.
package position

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Bounds of a vector.
const (
	MaxSlots = 32
	MaxEpoch = 9_999_999_999

	headDigits  = 11 // "1" and the epoch
	fieldDigits = 20
	plainDigits = 20
)

// A Vector is the resourceVersion of each cluster, by its slot, in an epoch of
// the document that gave out the slots. A cluster of which nothing is known yet
// has 0.
type Vector struct {
	Epoch  uint64
	Fields []uint64
}

// NewVector is the vector of nothing known. Width is the highest slot plus 1.
func NewVector(epoch uint64, width int) Vector {
	return Vector{Epoch: epoch, Fields: make([]uint64, width)}
}

// At is the field of a slot; beyond the last one it is 0.
func (v Vector) At(slot int) uint64 {
	if slot >= len(v.Fields) {
		return 0
	}
	return v.Fields[slot]
}

// Raise moves a field up; it never moves down.
func (v *Vector) Raise(slot int, rv uint64) {
	v.widen(slot + 1)
	v.Fields[slot] = max(v.Fields[slot], rv)
}

// widen keeps a vector as wide as one that the client had, for its number must
// not shrink.
func (v *Vector) widen(width int) {
	for len(v.Fields) < width {
		v.Fields = append(v.Fields, 0)
	}
}

// Clone is a copy that shares nothing.
func (v Vector) Clone() Vector {
	return Vector{v.Epoch, append([]uint64(nil), v.Fields...)}
}

// Equal compares two vectors; fields that are not there are 0.
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

// String writes the vector as one number: 1, the epoch as 10 digits, and 20
// digits for each slot. Fixed widths make the number grow when a field grows.
func (v Vector) String() string { return string(v.Append(nil)) }

// Append appends what String gives.
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

// An RV is the resourceVersion of a request: nothing, a number that one cluster
// gave out, or a vector.
type RV struct {
	Vector *Vector
	Plain  uint64 // 0: absent, "" or "0"
}

// ParseRV reads a resourceVersion. What is neither a number of 64 bits nor a
// vector is a 400.
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

// BadRequest is a 400.
func BadRequest(message string) *wire.Status {
	return &wire.Status{Code: 400, Reason: wire.ReasonBadRequest, Message: "mca: " + message}
}

// Expired is a 410, after which a client reads again.
func Expired(message string) *wire.Status {
	return &wire.Status{Code: 410, Reason: wire.ReasonExpired, Message: "mca: " + message}
}

// ahead is the 504 for a position of a document that is newer than ours.
func ahead(epoch, ours uint64) *wire.Status {
	return &wire.Status{Code: 504, Reason: wire.ReasonTimeout, Cause: wire.CauseTooLarge, RetryAfter: 1,
		Message: fmt.Sprintf("mca: Too large resource version: of epoch %d, current: %d", epoch, ours)}
}
