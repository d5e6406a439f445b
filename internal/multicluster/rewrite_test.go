package multicluster

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// renameObject changes objects that have a name, and no others.
func renameObject(object []byte) []byte {
	if !strings.Contains(string(object), `"name"`) {
		return object
	}
	return annotateObject("from", "<east>")(object)
}

func TestAnnotate(t *testing.T) {
	for object, want := range map[string]string{
		`{"kind":"A","metadata":{"name":"a"},"x":1.50}`:            `{"kind":"A","metadata":{"name":"a","annotations":{"from":"west"}},"x":1.50}`,
		`{"metadata":{"annotations":{"from":"x","k":"v"}}}`:        `{"metadata":{"annotations":{"from":"west","k":"v"}}}`,
		`{"metadata":{"annotations":null}}`:                        `{"metadata":{"annotations":{"from":"west"}}}`,
		`{"kind":"Table"}`:                                         `{"kind":"Table"}`,
		`{"metadata":{"annotations":{"a":"1","a":"2"}},"twice":1}`: `{"metadata":{"annotations":{"a":"1","a":"2"}},"twice":1}`,
	} {
		if got := annotateObject("from", "west")([]byte(object)); string(got) != want {
			t.Errorf("%s\nis %s\nwant %s", object, got, want)
		}
	}
}

func TestRewriteResponse(t *testing.T) {
	const is = `"annotations":{"from":"\u003ceast\u003e"}`
	for why, tt := range map[string]struct{ body, want string }{
		"an object":                   {`{"kind":"Pod","metadata":{"name":"a"}}`, `{"kind":"Pod","metadata":{"name":"a",` + is + `}}`},
		"a Status":                    {`{"kind":"Status","metadata":{"name":"a"}}`, `{"kind":"Status","metadata":{"name":"a"}}`},
		"a list":                      {`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a",` + is + `}},{}]}`},
		"a list without change":       {`{ "kind":"PodList","items":[ {} ]}`, `{ "kind":"PodList","items":[ {} ]}`},
		"an object called a list":     {`{"kind":"TodoList","metadata":{"name":"a"},"items":[{"metadata":{"name":"b"}}]}`, `{"kind":"TodoList","metadata":{"name":"a",` + is + `},"items":[{"metadata":{"name":"b"}}]}`},
		"a Table":                     {`{"kind":"Table","rows":[{"cells":[1],"object":{"metadata":{"name":"a"}}},{"cells":[2],"object":null}]}`, `{"kind":"Table","rows":[{"cells":[1],"object":{"metadata":{"name":"a",` + is + `}}},{"cells":[2],"object":null}]}`},
		"a Table without rows":        {`{"kind":"Table"}`, `{"kind":"Table"}`},
		"no JSON":                     {`{"metadata":{"name":`, `{"metadata":{"name":`},
		"something that is no object": {`["name"]`, `["name"]`},
	} {
		if got := rewriteResponse([]byte(tt.body), renameObject); string(got) != tt.want {
			t.Errorf("%s: %s\nwant %s", why, got, tt.want)
		}
	}
}

func TestEvents(t *testing.T) {
	const events = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}
{"type":"BOOKMARK","object":{"metadata":{"name":"no"}}}
{"type":"ADDED","object":{"kind":"Table","rows":[{"object":{"metadata":{"name":"b"}}}]}}
{"type":"ERROR","object":{"kind":"Status","metadata":{"name":"no"}}}
{"type":"DELETED","object":{"metadata":{"name":"c"}}}
`
	const want = `{"type":"ADDED","object":{"metadata":{"name":"a","annotations":{"from":"\u003ceast\u003e"}}}}
{"type":"BOOKMARK","object":{"metadata":{"name":"no"}}}
{"type":"ADDED","object":{"kind":"Table","rows":[{"object":{"metadata":{"name":"b","annotations":{"from":"\u003ceast\u003e"}}}}]}}
{"type":"ERROR","object":{"kind":"Status","metadata":{"name":"no"}}}
{"type":"DELETED","object":{"metadata":{"name":"c","annotations":{"from":"\u003ceast\u003e"}}}}
`
	for why, r := range map[string]io.Reader{"at once": strings.NewReader(events), "byte by byte": iotest.OneByteReader(strings.NewReader(events))} {
		got, err := io.ReadAll(rewriteEvents(io.NopCloser(r), renameObject))
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", why, err, got)
		}
	}
	if _, err := io.ReadAll(rewriteEvents(io.NopCloser(strings.NewReader(events[:len(events)-9])), renameObject)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an interrupted stream: %v", err)
	}
}

// TestEventsAreNotBuffered checks that an event is returned at once, before the next one arrives.
func TestEventsAreNotBuffered(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	events := rewriteEvents(r, renameObject)
	go w.Write([]byte(`{"type":"ADDED","object":{}}`)) // without the rest of the stream
	b := make([]byte, 64)
	if n, err := events.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), `{"type":"ADDED"`) {
		t.Errorf("%q (%v)", b[:n], err)
	}
	events.Close()
}

const wholeList = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","a\"b":{}},"items":[{"metadata":{"name":"a"}},{"x":[1.50]} , {"metadata":{"name":"<b>"}}],"more":null}
`

func TestList(t *testing.T) {
	const want = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","a\"b":{}},"items":[{"metadata":{"name":"a","annotations":{"from":"\u003ceast\u003e"}}},{"x":[1.50]},{"metadata":{"name":"<b>","annotations":{"from":"\u003ceast\u003e"}}}],"more":null}`
	for why, r := range map[string]io.Reader{"at once": strings.NewReader(wholeList), "byte by byte": iotest.OneByteReader(strings.NewReader(wholeList))} {
		got, err := io.ReadAll(rewriteList(io.NopCloser(r), false, renameObject))
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", why, err, got)
		}
	}
	for body, want := range map[string]string{
		`{"items":null}`:             `{"items":null}`,
		`{"items":[],"metadata":{}}`: `{"items":[],"metadata":{}}`,
		`{"kind":"Status"}`:          `{"kind":"Status"}`,
	} {
		if got, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(body)), false, renameObject)); err != nil || string(got) != want {
			t.Errorf("%s: %v %s", body, err, got)
		}
	}
	table := `{"kind":"Table","columnDefinitions":[{"name":"A"}],"rows":[{"cells":["a"],"object":{"metadata":{"name":"a"}}}]}`
	got, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(table)), true, renameObject))
	if err != nil || !strings.Contains(string(got), `{"cells":["a"],"object":{"metadata":{"name":"a","annotations":`) {
		t.Errorf("a Table: %v %s", err, got)
	}
}

// TestListThatBreaksOff checks that truncated input is an error at every byte, and that trailing data is too.
func TestListThatBreaksOff(t *testing.T) {
	whole := strings.TrimSpace(wholeList)
	for n := range len(whole) {
		if got, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(whole[:n])), false, renameObject)); err == nil {
			t.Errorf("%d bytes of %d are accepted as a list: %s", n, len(whole), got)
		}
	}
	for _, body := range []string{whole + "{}", `[]`, `{"items":{}}`, `{"items":[1,]}`, `{"items":[1}`} {
		if got, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(body)), false, renameObject)); err == nil {
			t.Errorf("%s is a list: %s", body, got)
		}
	}
	large := `{"items":["` + strings.Repeat("x", maxObject+1<<20) + `"]}`
	if _, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(large)), false, renameObject)); !errors.Is(err, errObjectTooLarge) {
		t.Errorf("an unterminated item: %v", err)
	}
}

// FuzzList checks that the output is equivalent to the input, or an error.
func FuzzList(f *testing.F) {
	f.Add([]byte(wholeList), false)
	f.Add([]byte(`{"rows":[{"object":{"metadata":{"name":"a"}}}],"items":[1]}`), true)
	f.Fuzz(func(t *testing.T, body []byte, table bool) {
		unchanged := func(object []byte) []byte { return object }
		got, err := io.ReadAll(rewriteList(io.NopCloser(strings.NewReader(string(body))), table, unchanged))
		if err != nil {
			return
		}
		if !json.Valid(body) || !json.Valid(got) {
			t.Fatalf("%q becomes %q", body, got)
		}
		var was, is any
		if json.Unmarshal(body, &was) == nil && (json.Unmarshal(got, &is) != nil || joinBytes(t, was) != joinBytes(t, is)) {
			t.Fatalf("%q becomes %q", body, got)
		}
	})
}

// BenchmarkList reads a list whose objects are inspected and not changed.
func BenchmarkList(b *testing.B) {
	item := `{"metadata":{"name":"a","labels":{"x":"` + strings.Repeat("y", 1000) + `"}}}`
	body := `{"kind":"PodList","items":[` + strings.Repeat(item+",", 1000) + item + `]}`
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.Copy(io.Discard, rewriteList(io.NopCloser(strings.NewReader(body)), false, func(object []byte) []byte { return object })); err != nil {
			b.Fatal(err)
		}
	}
}

func joinBytes(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
