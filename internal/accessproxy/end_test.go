package accessproxy

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// Events of a watch, in JSON and in protobuf frames.
var (
	jsonEvents  = []string{`{"type":"ADDED","object":{"a":"} \" ] {","b":[1,{}]}}` + "\n", `{"type":"BOOKMARK","object":{}}` + "\n"}
	protoEvents = []string{frame("k8s\x00 first"), frame(""), frame(strings.Repeat("x", 300))}
)

// Items of a CBOR sequence: as Kubernetes writes them, and with all other forms of RFC 8949.
var cborEvents = []string{
	cborEvent(map[string]any{"a": "} \" ]", "b": []any{int64(1), map[string]any{}, nil, true, 1.5}, "c": strings.Repeat("x", 300), "d": strings.Repeat("y", 70_000)}),
	cborEvent(map[string]any{}),
	"\x18\xff", "\xf6", "\xfb\x00\x00\x00\x00\x00\x00\x00\x00", "\x5f\x41a\x40\x42bc\xff", "\x9f\x01\x9f\xff\x82\x01\x60\xff", "\xbf\x61a\x80\xff", "\xc1\xc2\x41\x01", "\x1b\x00\x00\x00\x00\x00\x00\x00\x01",
}

func cborEvent(object map[string]any) string {
	b, err := direct.Marshal(map[string]any{"type": "ADDED", "object": object})
	if err != nil {
		panic(err)
	}
	return selfDescribed + string(b)
}

// The ERROR event in CBOR is one item, which Kubernetes reads as a Status.
func TestCBORError(t *testing.T) {
	want := codec.Status{Message: strings.Repeat("the sign-in has ended; ", 20), Reason: "Forbidden", Code: 403}
	b := appendCBORError(nil, want)
	var items cborItems
	items.passed(b)
	if !items.isWhole() {
		t.Error("the event is not whole")
	}
	var event struct {
		Type   string        `json:"type"`
		Object metav1.Status `json:"object"`
	}
	if err := direct.Unmarshal(b, &event); err != nil {
		t.Fatal(err)
	}
	got := codec.Status{Message: event.Object.Message, Reason: string(event.Object.Reason), Code: int(event.Object.Code)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if event.Type != "ERROR" || event.Object.Status != metav1.StatusFailure {
		t.Errorf("type %q, status %q", event.Type, event.Object.Status)
	}
}

// What is no CBOR, or deeper than Kubernetes allows, never becomes whole again, so no event is written into it.
func TestBrokenCBOR(t *testing.T) {
	for _, s := range []string{"\xff", "\x1c", "\x1f", "\x81\xff", strings.Repeat("\x81", 200) + "\x00", "\x9b\xff\xff\xff\xff\xff\xff\xff\xff"} {
		var items cborItems
		items.passed([]byte(s + "\x00"))
		if items.isWhole() {
			t.Errorf("%q is whole", s)
		}
	}
}

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
		{"application/cbor-seq", cborEvents, true},
		{"application/cbor", []string{"x"}, false},
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
		f.Add(e, 3, 1)
		f.Add(e, 1, 0)
	}
	for _, e := range cborEvents {
		f.Add(e, 3, 2)
	}
	f.Fuzz(func(t *testing.T, s string, at, kind int) {
		if len(s) > 1<<16 || at < 0 || at > len(s) {
			t.Skip()
		}
		types := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/cbor-seq"}
		contentType := types[uint(kind)%3]
		whole, split := newEventFrames(contentType), newEventFrames(contentType)
		whole.passed([]byte(s))
		split.passed([]byte(s[:at]))
		split.passed([]byte(s[at:]))
		if whole.isWhole() != split.isWhole() {
			t.Errorf("isWhole = %v in one piece, and %v split at %d", whole.isWhole(), split.isWhole(), at)
		}
	})
}
