package codec

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// FuzzListJSON compares the reader with encoding/json. Both must find the same items in a list, and the
// output must be JSON.
func FuzzListJSON(f *testing.F) {
	// Seeds are short, because the fuzzer spends all its time on minimising long ones.
	f.Add([]byte(`{"kind":"L","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"spec":["]"]}]}`))
	f.Add([]byte(`{"apiVersion":"x/v1","items":[{"metadata":{"name":"a\u0041\"","namespace":"n"}},{}],"kind":"L","metadata":{"resourceVersion":"7"}}`))
	f.Add([]byte(`{"items":null,"metadata":{"resourceVersion":"7","remainingItemCount":3,"continue":"x"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var items []string
		var out bytes.Buffer
		whole := func(r io.Reader) error {
			items = nil
			out.Reset()
			l := NewListReader(r, Format{})
			if err := l.Open(); err != nil {
				return err
			}
			for first := true; ; first = false {
				ok, err := l.Next()
				if err != nil || !ok {
					return err
				}
				items = append(items, string(l.Namespace)+"/"+string(l.Name))
				if !first {
					out.WriteByte(',')
				}
				if err := l.CopyItem(&out); err != nil {
					return err
				}
			}
		}
		err := whole(bytes.NewReader(body))
		all, taken := items, out.String()
		again := whole(iotest.OneByteReader(bytes.NewReader(body)))
		if (err == nil) != (again == nil) || err == nil && (len(all) != len(items) || taken != out.String()) {
			t.Fatalf("at once: %v %q; byte by byte: %v %q", err, all, again, items)
		}
		if err != nil || !json.Valid(body) {
			return
		}
		if !json.Valid([]byte("[" + taken + "]")) {
			t.Fatalf("JSON became %q", taken)
		}
		if !utf8.Valid(body) {
			return // invalid UTF-8 passes through unchanged; encoding/json replaces it
		}
		var want []any
		if err := json.Unmarshal([]byte("["+taken+"]"), &want); err != nil || len(want) != len(all) {
			t.Fatalf("%d items of which %d came out: %v", len(all), len(want), err)
		}
		for i, item := range want {
			m, _ := item.(map[string]any)
			meta, _ := m["metadata"].(map[string]any)
			name, _ := meta["name"].(string)
			ns, _ := meta["namespace"].(string)
			if got := all[i]; got != ns+"/"+name && bytes.Count(body, []byte(`"metadata"`)) <= 1+len(want) && forEachOnce(taken) {
				t.Fatalf("item %d is %q, not %q", i, got, ns+"/"+name)
			}
		}
	})
}

// forEachOnce reports whether no item can have a duplicate key, of which encoding/json uses the last.
func forEachOnce(s string) bool {
	for _, key := range []string{"name", "namespace", "metadata", `\`} {
		if bytes.Count([]byte(s), []byte(key)) > 1 {
			return false
		}
	}
	return true
}

// FuzzListProto checks that taken and dropped items together have the announced length, so that the envelope
// stays valid.
func FuzzListProto(f *testing.F) {
	f.Add(encodeProto(f, pods(2, "e")), uint64(1))
	f.Add(encodeProto(f, pods(0, "east")), uint64(0))
	f.Fuzz(func(t *testing.T, body []byte, drop uint64) {
		l := NewListReader(bytes.NewReader(body), Format{Proto: true})
		if l.Open() != nil {
			return
		}
		rest := l.Rest()
		if rest > 1<<30 {
			return
		}
		var out bytes.Buffer
		for i := 0; ; i++ {
			ok, err := l.Next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			if drop&(1<<(i%64)) != 0 && !l.Foreign {
				err = l.SkipItem(&out)
			} else {
				err = l.CopyItem(&out)
			}
			if err != nil {
				return
			}
		}
		if uint64(out.Len()) != rest {
			t.Fatalf("returned %d bytes, wrote %d", rest, out.Len())
		}
	})
}

// FuzzEvents checks three properties. The events do not depend on the sizes of reads. JSON events agree with
// encoding/json. An end within an event is never a clean end.
func FuzzEvents(f *testing.F) {
	for _, proto := range []bool{false, true} {
		var b []byte
		b = AppendFrame(b, BookmarkObject{Kind: "P", APIVersion: "v1", ResourceVersion: "7", InitialEnd: true}.Append(nil, Format{Proto: proto}), proto)
		b = AppendFrame(b, AppendError(nil, proto, &Status{Code: 410}), proto)
		f.Add(b, proto, false)
	}
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}`), false, false)
	f.Add([]byte(`{"type":"ADDED","object":{"kind":"Table","columnDefinitions":[{"name":"N"}],"rows":[{"cells":["a"],"object":{"metadata":{"name":"a","resourceVersion":"7"}}}]}}`), false, true)
	f.Fuzz(func(t *testing.T, body []byte, proto, asTable bool) {
		format := Format{Proto: proto}
		if asTable && !proto {
			format.Shape = ShapeTable
		}
		all := func(r io.Reader) (raw []string, err error) {
			e := NewEventReader(r, format, new(BufferPool), nil)
			var ev Event
			for {
				if err = e.Next(&ev); err != nil {
					return raw, err
				}
				raw = append(raw, string(ev.Raw)+"|"+ev.Type.String()+"|"+string(ev.Namespace)+"/"+string(ev.Name))
				if !proto && ev.Type != EventError && format.Shape != ShapeTable && json.Valid(ev.Raw) && forEachOnce(string(ev.Raw)) {
					var want struct {
						Object struct{ Metadata map[string]any }
					}
					if json.Unmarshal(ev.Raw, &want) == nil {
						if name, ok := want.Object.Metadata["name"].(string); ok && bytes.Contains(ev.Raw, []byte(`"metadata"`)) && bytes.Contains(ev.Raw, []byte(`"object"`)) && name != string(ev.Name) {
							t.Fatalf("%s has the name %q in this form", ev.Raw, ev.Name)
						}
					}
				}
				if format.Shape == ShapeTable && ev.IsTable() {
					b, err := ev.AppendTable(nil, NewRow(ev.Columns, ev.Columns, "east", false), ev.Columns, ev.Columns != nil)
					if err == nil && json.Valid(ev.Raw) && !json.Valid(b) {
						t.Fatalf("%s became %s", ev.Raw, b)
					}
				}
			}
		}
		at, err := all(bytes.NewReader(body))
		one, again := all(iotest.OneByteReader(bytes.NewReader(body)))
		if len(at) != len(one) || (err == io.EOF) != (again == io.EOF) {
			t.Fatalf("at once %d events and %v, byte by byte %d and %v", len(at), err, len(one), again)
		}
		for i := range at {
			if at[i] != one[i] {
				t.Fatalf("event %d is %q and %q", i, at[i], one[i])
			}
		}
	})
}

// FuzzTable checks that converted rows are JSON if the original rows were.
func FuzzTable(f *testing.F) {
	f.Add([]byte(`{"metadata":{"resourceVersion":"7"},"columnDefinitions":[{"name":"Age"},{"name":"Name"}],"rows":[{"cells":["5d","a"],"object":{"metadata":{"name":"a"}}}]}`), true)
	f.Add([]byte(`{"metadata":{"resourceVersion":"7"},"columnDefinitions":[],"rows":[{"conditions":[],"cells":[1,{"a":"]"}],"object":null}]}`), false)
	f.Fuzz(func(t *testing.T, body []byte, strip bool) {
		want, err := parseColumns([]byte(`[{"name":"Name"},{"name":"Other"},{"name":"Age"}]`))
		if err != nil {
			t.Fatal(err)
		}
		l := NewListReader(bytes.NewReader(body), Format{Shape: ShapeTable})
		if l.Open() != nil {
			return
		}
		l.Row = NewRow(l.Columns, want, "east", strip)
		var out bytes.Buffer
		for {
			ok, err := l.Next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			if out.Len() > 0 {
				out.WriteByte(',')
			}
			if l.CopyItem(&out) != nil {
				return
			}
		}
		if json.Valid(body) && !json.Valid([]byte("["+out.String()+"]")) {
			t.Fatalf("%s became %s", body, out.String())
		}
	})
}
