package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// frame returns an event as a server sends it.
func frame(t testing.TB, proto bool, typ string, o runtime.Object) []byte {
	t.Helper()
	if !proto {
		return encodeJSON(t, metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: bytes.TrimSpace(encodeJSON(t, o))}})
	}
	ev := metav1.WatchEvent{Type: typ, Object: runtime.RawExtension{Raw: encodeProto(t, o)}}
	b, err := ev.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return AppendFrame(nil, b, true)
}

func pod(name string, rv int, annotations map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "u", ResourceVersion: fmt.Sprint(rv), Annotations: annotations, Labels: map[string]string{"a": "b"}}}
	p.Kind, p.APIVersion = "Pod", "v1"
	return p
}

func TestEvents(t *testing.T) {
	for _, proto := range []bool{false, true} {
		var stream []byte
		big := pod("big", 12, map[string]string{"x": strings.Repeat("y", 100<<10)})
		stream = append(stream, frame(t, proto, "ADDED", pod("a", 10, nil))...)
		stream = append(stream, frame(t, proto, "MODIFIED", pod("b", 11, map[string]string{"name": `"`}))...)
		stream = append(stream, frame(t, proto, "DELETED", big)...)
		stream = append(stream, frame(t, proto, "BOOKMARK", pod("", 13, nil))...)
		stream = append(stream, frame(t, proto, "BOOKMARK", pod("", 14, map[string]string{"z": "", "k8s.io/initial-events-end": "true"}))...)
		expired := &metav1.Status{Status: "Failure", Message: "too old", Reason: metav1.StatusReasonExpired, Code: 410, Details: &metav1.StatusDetails{RetryAfterSeconds: 3, Causes: []metav1.StatusCause{{Type: "C"}}}}
		expired.Kind, expired.APIVersion, expired.Continue = "Status", "v1", "tok"
		stream = append(stream, frame(t, proto, "ERROR", expired)...)
		for name, r := range map[string]io.Reader{"at once": bytes.NewReader(stream), "one byte": iotest.OneByteReader(bytes.NewReader(stream))} {
			var got []string
			idles := 0
			events := NewEventReader(r, Format{Proto: proto}, new(BufferPool), func() error { idles++; return nil })
			var ev Event
			for {
				err := events.Next(&ev)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if string(ev.Kind) != "Pod" && ev.Type != EventError || string(ev.APIVersion) != "v1" {
					t.Errorf("kind %s %s", ev.APIVersion, ev.Kind)
				}
				s := fmt.Sprintf("%v %s/%s %d %v", ev.Type, ev.Namespace, ev.Name, ev.ResourceVersion, ev.InitialEnd)
				if ev.Status != nil {
					s = fmt.Sprintf("%+v", *ev.Status)
				}
				got = append(got, s)
				if !proto && !json.Valid(ev.Raw) {
					t.Errorf("raw is %s", ev.Raw)
				}
			}
			want := []string{"ADDED ns/a 10 false", "MODIFIED ns/b 11 false", "DELETED ns/big 12 false", "BOOKMARK ns/ 13 false", "BOOKMARK ns/ 14 true",
				"{Code:410 Reason:Expired Message:too old Continue:tok Cause:C RetryAfter:3 From: Name: Group: Resource:}"}
			if !slices.Equal(got, want) {
				t.Errorf("proto=%v %s:\n%s", proto, name, strings.Join(got, "\n"))
			}
			if idles == 0 {
				t.Error("no callback ran before a read")
			}
		}
		for n := range len(stream) - 1 {
			events := NewEventReader(bytes.NewReader(stream[:n]), Format{Proto: proto}, new(BufferPool), nil)
			var ev Event
			var err error
			end := 0
			for err = events.Next(&ev); err == nil; err = events.Next(&ev) {
				end += len(AppendFrame(nil, ev.Raw, proto))
			}
			if clean := err == io.EOF; clean != (end == n || !proto && end == n+1) {
				t.Fatalf("proto=%v: %d bytes, of which events have %d, end with %v", proto, n, end, err)
			}
			if n > 2000 && n < 100000 {
				break // all positions within the large event behave the same
			}
		}
	}
}

func TestEventsRefuse(t *testing.T) {
	for why, s := range map[string]string{
		"no type":       `{"object":{"metadata":{"resourceVersion":"1"}}}`,
		"another type":  `{"type":"MOVED","object":{"metadata":{"resourceVersion":"1"}}}`,
		"no object":     `{"type":"ADDED","object":null}`,
		"no version":    `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`,
		"no event":      `[]`,
		"odd nesting":   `{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"a":[}]}}`,
		"a long number": `{"type":"ADDED","object":{"metadata":{"resourceVersion":"99999999999999999999"}}}`,
	} {
		var ev Event
		if err := NewEventReader(strings.NewReader(s), Format{}, new(BufferPool), nil).Next(&ev); err == nil || err == io.EOF {
			t.Errorf("%s: %v %+v", why, err, ev)
		}
	}
}

// TestComposedEvents checks that real decoders read the bookmarks and errors of this package.
func TestComposedEvents(t *testing.T) {
	const v = "10000000007000000000000000000000000000000000000004821300000000000000000901"
	for _, proto := range []bool{false, true} {
		decode := func(b []byte, into runtime.Object) string {
			t.Helper()
			var ev metav1.WatchEvent
			var err error
			if proto {
				if err = ev.Unmarshal(b); err == nil {
					_, _, err = protobuf.NewSerializer(anyScheme{}, anyScheme{}).Decode(ev.Object.Raw, nil, into)
				}
			} else if err = json.Unmarshal(b, &ev); err == nil {
				err = json.Unmarshal(ev.Object.Raw, into)
			}
			if err != nil {
				t.Fatalf("proto=%v: %v: %q", proto, err, b)
			}
			return ev.Type
		}
		for _, end := range []bool{false, true} {
			var p corev1.Pod
			typ := decode(BookmarkObject{Kind: "Pod", APIVersion: "v1", ResourceVersion: v, InitialEnd: end}.Append(nil, Format{Proto: proto}), &p)
			switch {
			case typ != "BOOKMARK":
				t.Errorf("proto=: typ = %q, want %q; proto = %v", typ, "BOOKMARK", proto)
			case p.ResourceVersion != v:
				t.Errorf("proto=: p.ResourceVersion = %q, want %q; proto = %v", p.ResourceVersion, v, proto)
			case (p.Annotations[metav1.InitialEventsAnnotationKey] == "true") != end:
				t.Errorf(`proto=: (p.Annotations[metav1.InitialEventsAnnotationKey] == "true") != end; proto = %v, %s, %+v`,
					proto, typ, p.ObjectMeta)
			}
			if !proto && (p.Kind != "Pod" || p.APIVersion != "v1") {
				t.Errorf("%+v", p.TypeMeta)
			}
		}
		want := &Status{Code: 410, Reason: ReasonExpired, Message: "too old", Continue: "tok", Cause: CauseTooLarge, RetryAfter: 1}
		var s metav1.Status
		switch typ := decode(AppendError(nil, proto, want), &s); {
		case typ != "ERROR":
			t.Errorf("proto=: typ = %q, want %q; proto = %v", typ, "ERROR", proto)
		case s.Code != 410:
			t.Errorf("proto=: s.Code = %v, want 410; proto = %v", s.Code, proto)
		case s.Reason != metav1.StatusReasonExpired:
			t.Errorf("proto=: s.Reason = %q, want %q; proto = %v", s.Reason, metav1.StatusReasonExpired, proto)
		case s.Status != metav1.StatusFailure:
			t.Errorf("proto=: s.Status = %q, want %q; proto = %v", s.Status, metav1.StatusFailure, proto)
		case s.Message != "too old":
			t.Errorf("proto=: s.Message = %q, want %q; proto = %v", s.Message, "too old", proto)
		case s.Continue != "tok":
			t.Errorf("proto=: s.Continue = %q, want %q; proto = %v", s.Continue, "tok", proto)
		case s.Details.RetryAfterSeconds != 1:
			t.Errorf("proto=: s.Details.RetryAfterSeconds = %v, want 1; proto = %v", s.Details.RetryAfterSeconds, proto)
		case s.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge:
			t.Errorf("proto=: got %q, want %q; proto = %v", s.Details.Causes[0].Type, metav1.CauseTypeResourceVersionTooLarge, proto)
		}
		if got := ParseStatus(want.Append(nil, proto), proto, 410); *got != *want {
			t.Errorf("proto=%v: came back as %+v", proto, got)
		}
		if got := ParseStatus([]byte("<html>"), proto, 502); got.Code != 502 || got.Message != "HTTP 502" {
			t.Errorf("proto=%v: %+v", proto, got)
		}
	}
}

// anyScheme is the part of a scheme that a decoder into a given object needs.
type anyScheme struct{}

func (anyScheme) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	if kind.Kind == "Status" {
		return &metav1.Status{}, nil
	}
	return &corev1.Pod{}, nil
}
func (anyScheme) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := o.(*metav1.Status); ok {
		return []schema.GroupVersionKind{{Version: "v1", Kind: "Status"}}, false, nil
	}
	return []schema.GroupVersionKind{{Version: "v1", Kind: "Pod"}}, false, nil
}
func (anyScheme) Recognizes(schema.GroupVersionKind) bool { return true }

func table(columns []string, rows ...metav1.TableRow) *metav1.Table {
	t := &metav1.Table{ListMeta: metav1.ListMeta{ResourceVersion: "48213"}, Rows: rows}
	t.Kind, t.APIVersion = "Table", "meta.k8s.io/v1"
	for _, c := range columns {
		t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: c, Type: "string"})
	}
	return t
}

func row(name string, rv int, cells ...any) metav1.TableRow {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", ResourceVersion: fmt.Sprint(rv)}}
	m.Kind, m.APIVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
	return metav1.TableRow{Cells: cells, Conditions: []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: "True"}}, Object: runtime.RawExtension{Object: m}}
}

// TestTableRows checks that cells move to the columns of the first table, with the cluster at the end.
func TestTableRows(t *testing.T) {
	for _, strip := range []bool{false, true} {
		body := encodeJSON(t, table([]string{"Age", "Name", "Extra"}, row("a", 1, "5d", "a", 7), row("b", 2, "6d", "b", map[string]any{"x": []any{1, "]"}})))
		l := NewListReader(iotest.OneByteReader(bytes.NewReader(body)), Format{Shape: ShapeTable})
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		first, err := parseColumns(encodeJSON(t, table([]string{"Name", "Ready", "Age"}).ColumnDefinitions))
		if err != nil {
			t.Fatal(err)
		}
		l.Row = NewRow(l.Columns, first, `ea"st`, strip)
		var out bytes.Buffer
		out.Write(ListHead{Kind: l.Kind, APIVersion: l.APIVersion, ResourceVersion: "7", Meta: ListMeta{Remaining: -1}}.AppendJSON(nil, Format{Shape: ShapeTable}, first, false))
		for n := 0; ; n++ {
			ok, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if want := string("ab"[n]); string(l.Name) != want || string(l.Namespace) != "ns" {
				t.Errorf("row %d is named %s/%s", n, l.Namespace, l.Name)
			}
			if n > 0 {
				out.WriteByte(',')
			}
			if err := l.CopyItem(&out); err != nil {
				t.Fatal(err)
			}
		}
		out.Write(ListHead{}.AppendEnd(nil, false))
		var got metav1.Table
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
		switch {
		case len(got.ColumnDefinitions) != 4:
			t.Errorf("len(got.ColumnDefinitions) = %v, want 4", len(got.ColumnDefinitions))
		case got.ColumnDefinitions[3].Name != "Cluster":
			t.Errorf("got.ColumnDefinitions[3].Name = %q, want %q", got.ColumnDefinitions[3].Name, "Cluster")
		case got.ColumnDefinitions[3].Priority != 1:
			t.Errorf("got.ColumnDefinitions[3].Priority = %v, want 1", got.ColumnDefinitions[3].Priority)
		case got.ResourceVersion != "7":
			t.Errorf("got.ResourceVersion = %q, want %q", got.ResourceVersion, "7")
		}
		if s := fmt.Sprint(got.Rows[0].Cells, got.Rows[1].Cells); s != `[a <nil> 5d ea"st] [b <nil> 6d ea"st]` {
			t.Errorf("cells are %s", s)
		}
		if got.Rows[1].Conditions[0].Type != metav1.RowCompleted {
			t.Error("conditions are missing")
		}
		if object := string(got.Rows[0].Object.Raw); strip != (object == "" || object == "null") || !strip && !strings.Contains(object, `"name":"a"`) {
			t.Errorf("strip=%v: the object is %q", strip, object)
		}
	}
}

func TestTableEvents(t *testing.T) {
	one := table([]string{"Name", "Age"}, row("a", 12, "a", "5d"))
	one.ResourceVersion = "12"
	two := table(nil, row("b", 13, "b", "6d"))
	mark := table(nil, row("", 14, nil, nil))
	mark.Rows[0].Object.Object.(*metav1.PartialObjectMetadata).Annotations = map[string]string{initialEnd: "true"}
	stream := slices.Concat(frame(t, false, "ADDED", one), frame(t, false, "MODIFIED", two), frame(t, false, "BOOKMARK", mark))
	events := NewEventReader(bytes.NewReader(stream), Format{Shape: ShapeTable}, new(BufferPool), nil)
	var ev Event
	var columns *Columns
	for _, want := range []string{"ADDED a 12", "MODIFIED b 13"} {
		if err := events.Next(&ev); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%v %s %d", ev.Type, ev.Name, ev.ResourceVersion); got != want {
			t.Errorf("%s, not %s", got, want)
		}
		with := ev.Columns != nil
		if with {
			columns = ev.Columns
		}
		for _, strip := range []bool{false, true} {
			b, err := ev.AppendTable(nil, NewRow(columns, columns, "east", strip), columns, with)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Type   string
				Object metav1.Table
			}
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatalf("%v: %s", err, b)
			}
			switch {
			case len(got.Object.Rows) != 1:
				t.Errorf("len(got.Object.Rows) = %v, want 1; %s", len(got.Object.Rows), b)
			case len(got.Object.Rows[0].Cells) != 3:
				t.Errorf("len(got.Object.Rows[0].Cells) = %v, want 3; %s", len(got.Object.Rows[0].Cells), b)
			case got.Object.Rows[0].Cells[2] != "east":
				t.Errorf("got.Object.Rows[0].Cells[2] = %v, want %v; %s", got.Object.Rows[0].Cells[2], "east", b)
			case (len(got.Object.ColumnDefinitions) == 3) != with:
				t.Errorf("(len(got.Object.ColumnDefinitions) == 3) != with; %s", b)
			}
		}
	}
	switch err := events.Next(&ev); {
	case err != nil:
		t.Error(err)
	case ev.Type != EventBookmark:
		t.Errorf("ev.Type = %v, want %v", ev.Type, EventBookmark)
	case ev.ResourceVersion != 14:
		t.Errorf("ev.ResourceVersion = %v, want 14", ev.ResourceVersion)
	case !ev.InitialEnd:
		t.Errorf("ev.InitialEnd is false; %v, %+v", err, ev)
	}
	var got struct{ Object metav1.Table }
	b := BookmarkObject{Kind: "Table", APIVersion: "meta.k8s.io/v1", ResourceVersion: "77", InitialEnd: true, Cells: 3}.Append(nil, Format{Shape: ShapeTable})
	switch err := json.Unmarshal(b, &got); {
	case err != nil:
		t.Fatalf("%v; %s", err, b)
	case got.Object.ResourceVersion != "77":
		t.Fatalf("got.Object.ResourceVersion = %q, want %q; %s", got.Object.ResourceVersion, "77", b)
	case len(got.Object.Rows[0].Cells) != 3:
		t.Fatalf("len(got.Object.Rows[0].Cells) = %v, want 3; %s", len(got.Object.Rows[0].Cells), b)
	}
	var partial metav1.PartialObjectMetadata
	switch err := json.Unmarshal(got.Object.Rows[0].Object.Raw, &partial); {
	case err != nil:
		t.Errorf("%v; %s", err, b)
	case partial.ResourceVersion != "77":
		t.Errorf("partial.ResourceVersion = %q, want %q; %s", partial.ResourceVersion, "77", b)
	case partial.Annotations[initialEnd] != "true":
		t.Errorf("partial.Annotations[initialEnd] = %q, want %q; %s", partial.Annotations[initialEnd], "true", b)
	}
}

// TestItemEvents checks that a list item becomes an initial event that has its kind exactly once.
func TestItemEvents(t *testing.T) {
	typed := pods(1, "east")
	for why, row := range map[string]struct {
		body []byte
		form Format
	}{
		"typed":    {encodeJSON(t, typed), Format{}},
		"protobuf": {encodeProto(t, typed), Format{Proto: true}},
		"custom":   {[]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod-0","namespace":"ns-east","resourceVersion":"100"}}]}`), Format{}},
		"table":    {encodeJSON(t, table([]string{"Name"}, row("pod-0", 100, "pod-0"))), Format{Shape: ShapeTable}},
	} {
		l := NewListReader(bytes.NewReader(row.body), row.form)
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		if ok, err := l.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		b, err := l.AppendItem(nil, true)
		if err != nil {
			t.Fatal(err)
		}
		var ev Event
		if err := NewEventReader(bytes.NewReader(AppendFrame(nil, b, row.form.Proto)), row.form, new(BufferPool), nil).Next(&ev); err != nil {
			t.Fatalf("%s: %v: %s", why, err, b)
		}
		want := "Pod"
		if row.form.Shape == ShapeTable {
			want = "Table"
			if ev.Columns == nil {
				t.Error("the table has no columns")
			}
		}
		switch {
		case ev.Type != EventAdded:
			t.Errorf("%s: ev.Type = %v, want %v", why, ev.Type, EventAdded)
		case string(ev.Name) != "pod-0":
			t.Errorf("%s: string(ev.Name) = %q, want %q", why, string(ev.Name), "pod-0")
		case ev.ResourceVersion != 100:
			t.Errorf("%s: ev.ResourceVersion = %v, want 100", why, ev.ResourceVersion)
		case string(ev.Kind) != want:
			t.Errorf("%s: string(ev.Kind) = %q, want %q", why, string(ev.Kind), want)
		case string(ev.APIVersion) != map[bool]string{false: "v1", true: "meta.k8s.io/v1"}[want == "Table"]:
			t.Errorf("%s: got %q, want %q",
				why, string(ev.APIVersion), map[bool]string{false: "v1", true: "meta.k8s.io/v1"}[want == "Table"])
		}
		if !row.form.Proto && (!json.Valid(b) || strings.Count(string(b), `"kind":"Pod"`) > 1) {
			t.Errorf("%s: %s", why, b)
		}
	}
}

func TestParseFormat(t *testing.T) {
	for s, want := range map[string]string{
		"application/json":                                                                    "{false 0}",
		"application/json;charset=utf-8":                                                      "{false 0}",
		"application/vnd.kubernetes.protobuf":                                                 "{true 0}",
		"application/vnd.kubernetes.protobuf;stream=watch":                                    "{true 0}",
		"application/json;as=Table;v=v1;g=meta.k8s.io":                                        "{false 2}",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io": "{true 1}",
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1":                   "{false 1}",
		"application/json;as=Table;v=v2;g=meta.k8s.io":                                        "",
		"application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io":                "",
		"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io":                     "",
		"application/cbor": "", "application/yaml": "", "": "", "application/json;;": "",
	} {
		f, ok := ParseFormat(s)
		got := ""
		if ok {
			got = fmt.Sprint(f)
		}
		if got != want {
			t.Errorf("%q is %q, not %q", s, got, want)
		}
	}
}
