package merge

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
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

// newVector returns a vector of zero fields. width is the highest slot plus 1.
func newVector(epoch uint64, width int) Vector {
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

// String returns the vector as one number: 1, the epoch in 10 digits, and 20 digits for each slot. The widths
// are fixed, so the number grows when a field grows.
func (v Vector) String() string { return string(v.Append(nil)) }

// Append appends the result of String.
func (v Vector) Append(dst []byte) []byte {
	dst = append(dst, '1')
	dst = appendPadded(dst, v.Epoch, headDigits-1)
	for _, f := range v.Fields {
		dst = appendPadded(dst, f, fieldDigits)
	}
	return dst
}

func appendPadded(dst []byte, n uint64, width int) []byte {
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

// ResourceVersion is the resourceVersion of a request: none, a number from one cluster, or a vector.
type ResourceVersion struct {
	Vector *Vector
	Plain  uint64 // 0: absent, "" or "0"
}

// ParseResourceVersion parses a resourceVersion. It returns a 400 for anything but a 64-bit number or a vector.
func ParseResourceVersion(s string) (ResourceVersion, *codec.Status) {
	if s == "" || s == "0" {
		return ResourceVersion{}, nil
	}
	if strings.Trim(s, "0123456789") != "" || s[0] == '0' {
		return ResourceVersion{}, invalidRVStatus(s)
	}
	if len(s) <= plainDigits {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return ResourceVersion{}, invalidRVStatus(s)
		}
		return ResourceVersion{Plain: n}, nil
	}
	rest := len(s) - headDigits
	if rest < fieldDigits || rest%fieldDigits != 0 || rest/fieldDigits > MaxSlots || s[0] != '1' {
		return ResourceVersion{}, invalidRVStatus(s)
	}
	epoch, err := strconv.ParseUint(s[1:headDigits], 10, 64)
	if err != nil || epoch == 0 {
		return ResourceVersion{}, invalidRVStatus(s)
	}
	v := newVector(epoch, rest/fieldDigits)
	for i := range v.Fields {
		field := s[headDigits+i*fieldDigits:][:fieldDigits]
		if v.Fields[i], err = strconv.ParseUint(field, 10, 64); err != nil {
			return ResourceVersion{}, invalidRVStatus(s)
		}
	}
	return ResourceVersion{Vector: &v}, nil
}

func invalidRVStatus(s string) *codec.Status {
	return badRequestStatus(fmt.Sprintf("invalid resourceVersion %.60q", s))
}

// badRequestStatus returns a 400.
func badRequestStatus(message string) *codec.Status {
	return &codec.Status{Code: 400, Reason: codec.ReasonBadRequest, Message: "mca: " + message}
}

// expiredStatus returns a 410, after which a client lists again.
func expiredStatus(message string) *codec.Status {
	return &codec.Status{Code: 410, Reason: codec.ReasonExpired, Message: "mca: " + message}
}

// newerEpochStatus returns the 504 for a position of a newer configuration.
func newerEpochStatus(epoch, current uint64) *codec.Status {
	return &codec.Status{Code: 504, Reason: codec.ReasonTimeout, Cause: codec.CauseTooLarge, RetryAfter: 1,
		Message: fmt.Sprintf("mca: Too large resource version: of epoch %d, current: %d", epoch, current)}
}
