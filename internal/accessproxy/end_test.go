package accessproxy

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

// Events of a watch, in JSON and in protobuf frames.
var (
	jsonEvents  = []string{`{"type":"ADDED","object":{"a":"} \" ] {","b":[1,{}]}}` + "\n", `{"type":"BOOKMARK","object":{}}` + "\n"}
	protoEvents = []string{frame("k8s\x00 first"), frame(""), frame(strings.Repeat("x", 300))}
)

func frame(s string) string { return string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s }

// A stream is whole exactly at the ends of its events, however its bytes are split.
func TestEventFrames(t *testing.T) {
	for _, x := range []struct {
		contentType string
		events      []string
		known       bool
	}{
		{"application/json", jsonEvents, true},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", jsonEvents, true},
		{"application/vnd.kubernetes.protobuf;stream=watch", protoEvents, true},
		{"application/cbor-seq", []string{"x"}, false},
		{"", []string{"x"}, false},
		{";;", []string{"x"}, false},
	} {
		for seed := range uint64(50) {
			r, f := rand.New(rand.NewPCG(seed, 1)), newEventFrames(x.contentType)
			if f.known() != x.known {
				t.Errorf("%q: known = %v, want %v", x.contentType, f.known(), x.known)
			}
			for _, e := range x.events {
				for len(e) > 0 {
					n := 1 + r.IntN(len(e))
					f.passed([]byte(e[:n]))
					e = e[n:]
					// The newline after a JSON event is not part of it.
					if whole := strings.TrimSpace(e) == "" || !x.known; f.isWhole() != whole {
						t.Fatalf("%q, seed %d: isWhole = %v with %q to come", x.contentType, seed, f.isWhole(), e)
					}
				}
			}
		}
	}
}

// FuzzEventFrames checks that foreign bytes never break the frames, and that a split changes nothing.
func FuzzEventFrames(f *testing.F) {
	for _, e := range append(jsonEvents, protoEvents...) {
		f.Add(e, 3, true)
		f.Add(e, 1, false)
	}
	f.Fuzz(func(t *testing.T, s string, at int, proto bool) {
		if len(s) > 1<<16 || at < 0 || at > len(s) {
			t.Skip()
		}
		contentType := "application/json"
		if proto {
			contentType = "application/vnd.kubernetes.protobuf"
		}
		whole, split := newEventFrames(contentType), newEventFrames(contentType)
		whole.passed([]byte(s))
		split.passed([]byte(s[:at]))
		split.passed([]byte(s[at:]))
		if whole.isWhole() != split.isWhole() {
			t.Errorf("isWhole = %v in one piece, and %v split at %d", whole.isWhole(), split.isWhole(), at)
		}
	})
}
