package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// threeStores returns members with the objects a0.., b0.., c0.. and the given numbers of objects.
func threeStores(spread bool, f codec.Format, sizes ...int) *clusters {
	c := &clusters{format: f, spread: spread}
	for i, n := range sizes {
		s := newMemberStore(string(rune('a'+i)), uint64(100*(i+1)))
		for j := range n {
			s.set("ns", fmt.Sprint(s.name, j), "v", 2)
		}
		c.stores = append(c.stores, s)
	}
	return c
}

func listNames(items []corev1.ConfigMap) (names []string) {
	for _, o := range items {
		names = append(names, o.Name+"@"+o.Data["member"])
	}
	return names
}

// readList writes a merged list and decodes it.
func readList(t *testing.T, c *clusters, q Query) (*corev1.ConfigMapList, *List, error) {
	t.Helper()
	l, err := c.collection(&instance{}).List(t.Context(), q)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var b bytes.Buffer
	n, err := l.WriteTo(&b)
	if err != nil {
		return nil, l, err
	}
	if n != int64(b.Len()) {
		t.Errorf("wrote %d bytes, returned %d", b.Len(), n)
	}
	var got corev1.ConfigMapList
	if err := decode(b.Bytes(), &got, c.format.Proto); err != nil {
		t.Fatalf("%v: %s", err, b.Bytes())
	}
	return &got, l, nil
}

// TestPagesAreTheList (9) checks that pages of any size over three members add up to the list. A watch can
// start at the position of each page.
func TestPagesAreTheList(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		for _, sizes := range [][]int{{4, 3, 5}, {0, 3, 0}, {0, 0, 0}, {5, 0, 1}} {
			c := threeStores(true, f, sizes...)
			c.stores[len(sizes)-1].set("ns", "a1", "shadow", 1) // a duplicate name
			whole, _, err := readList(t, c, Query{})
			if err != nil {
				t.Fatal(err)
			}
			want := listNames(whole.Items)
			for limit := int64(1); limit <= 14; limit++ {
				var got []string
				q := Query{Limit: limit}
				for pages := 0; ; pages++ {
					page, _, err := readList(t, c, q)
					if err != nil {
						t.Fatal(err)
					}
					if int64(len(page.Items)) > limit {
						t.Errorf("limit %d: a page of %d", limit, len(page.Items))
					}
					if page.ResourceVersion != whole.ResourceVersion {
						t.Errorf("limit %d: page %d is at %s, not %s", limit, pages, page.ResourceVersion, whole.ResourceVersion)
					}
					got = append(got, listNames(page.Items)...)
					if page.Continue == "" {
						break
					}
					if pages > 20 {
						t.Fatalf("limit %d: the list does not end", limit)
					}
					q.Continue = page.Continue
				}
				if !slices.Equal(got, want) {
					t.Errorf("proto=%v sizes %v limit %d: %v, not %v", f.Proto, sizes, limit, got, want)
				}
			}
		}
	}
}

// TestServerWithoutPages checks a server that returns everything instead of a page, as is allowed
// with resourceVersion=0.
func TestServerWithoutPages(t *testing.T) {
	c := threeStores(false, codec.Format{}, 4, 3, 5)
	for _, s := range c.stores {
		s.limitless = true
	}
	var got []string
	q := Query{Limit: 2, RV: "0"}
	for {
		page, _, err := readList(t, c, q)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, listNames(page.Items)...)
		if page.Continue == "" {
			break
		}
		q = Query{Limit: 2, Continue: page.Continue}
	}
	if len(got) != 12 {
		t.Errorf("%v", got)
	}
}

// TestPagesThatCannotGoOn (9) checks an expired token of a member, and a member that is down between two
// pages.
func TestPagesThatCannotGoOn(t *testing.T) {
	c := threeStores(false, codec.Format{}, 4, 3, 5)
	first, _, err := readList(t, c, Query{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.stores {
		s.set("ns", s.name+"9", "new", 5)
		s.compact()
	}
	_, _, err = readList(t, c, Query{Limit: 2, Continue: first.Continue})
	s, ok := errors.AsType[*codec.Status](err)
	switch {
	case !ok:
		t.Fatalf("ok is false; %v", err)
	case s.Code != 410:
		t.Fatalf("s.Code = %v, want 410", s.Code)
	case s.Continue == "":
		t.Fatalf("s.Continue is empty; %v", err)
	}
	// A client that accepts an inconsistent list can continue at other positions.
	var got []string
	q := Query{Limit: 2, Continue: s.Continue}
	for range 20 {
		page, _, err := readList(t, c, q)
		if s, ok := errors.AsType[*codec.Status](err); ok && s.Code == 410 && s.Continue != "" {
			q.Continue = s.Continue // the next member's position has expired too
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, listNames(page.Items)...)
		if q.Continue = page.Continue; q.Continue == "" {
			break
		}
	}
	if want := []string{"a2@a", "a3@a", "a9@a", "b0@b", "b1@b", "b2@b", "b9@b", "c0@c", "c1@c", "c2@c", "c3@c", "c4@c", "c9@c"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	again, _, err := readList(t, c, Query{Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	c.stores[1].configure(true)
	c.skip = true // it does not apply to pages
	if _, _, err := readList(t, c, Query{Limit: 5, Continue: again.Continue}); code(err) != 503 {
		t.Errorf("a page although its member is down: %v", err)
	}
	page, _, err := readList(t, c, Query{Limit: 5, Continue: first.Continue})
	if code(err) != 410 {
		t.Errorf("%v %v", page, err)
	}
	if _, _, err := readList(t, c, Query{Limit: 5, Continue: "abc"}); code(err) != 400 {
		t.Errorf("%v", err)
	}
}

func code(err error) int {
	if err == nil {
		return 200
	}
	if s, ok := errors.AsType[*codec.Status](err); ok {
		return s.Code
	}
	return 0
}

// AD-06: a list is complete, or an error explains why not. A 410 has precedence, then the first error in
// member order, with the name of the cluster. A warning names a member that was left out.
func TestListFails(t *testing.T) {
	forbidden := &codec.Status{Code: 403, Reason: "Forbidden", Message: "pods is forbidden"}
	for _, row := range []struct {
		why  string
		do   func(a, b, c *memberStore)
		code int
		says string
	}{
		{"one down", func(a, b, c *memberStore) { b.down = true }, 503, "cluster b"},
		{"two down", func(a, b, c *memberStore) { b.down, c.down = true, true }, 503, "cluster b"},
		{"one forbids", func(a, b, c *memberStore) { c.refuse = forbidden }, 403, "cluster c: pods is forbidden"},
		{"the first in order", func(a, b, c *memberStore) { a.down, c.refuse = true, forbidden }, 503, "cluster a"},
		{"a 410 before all", func(a, b, c *memberStore) { a.down, b.refuse, c.refuse = true, forbidden, errGone }, 410, "cluster c"},
	} {
		c := threeStores(true, codec.Format{}, 2, 2, 2)
		row.do(c.stores[0], c.stores[1], c.stores[2])
		_, _, err := readList(t, c, Query{})
		if code(err) != row.code || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v", row.why, err)
		}
		if s, _ := errors.AsType[*codec.Status](err); s != nil && s.Code == 503 && s.RetryAfter == 0 {
			t.Errorf("%s: there is no Retry-After", row.why)
		}
		c.skip = true
		got, l, err := readList(t, c, Query{})
		if row.code == 410 {
			if code(err) != 410 {
				t.Errorf("%s: a 410 must not be skipped: %v", row.why, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rv, _ := ParseResourceVersion(got.ResourceVersion)
		for _, m := range l.Skipped {
			if rv.Vector.At(m.Slot) != 0 {
				t.Errorf("%s: %s was left out and is known at %d", row.why, m.Name, rv.Vector.At(m.Slot))
			}
		}
		if len(l.Skipped)+len(got.Items)/2 != 3 {
			t.Errorf("%s: %d items without %v", row.why, len(got.Items), l.Skipped)
		}
	}
	c := threeStores(true, codec.Format{}, 2, 2)
	c.skip = true
	c.stores[0].down, c.stores[1].down = true, true
	if _, _, err := readList(t, c, Query{}); code(err) != 503 {
		t.Errorf("no member is left, and the list is %v", err)
	}
}

// AD-06: if a member fails after the start of its response, WriteTo returns an error and the output is not a
// valid list.
func TestListBreaksOff(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		c := threeStores(false, f, 300, 300)
		col := c.collection(&instance{})
		req := col.Fetch
		col.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
			b, err := req(ctx, m, a)
			if err == nil && m.Slot == 1 {
				b.ReadCloser = io.NopCloser(io.MultiReader(io.LimitReader(b.ReadCloser, 5000), iotest.ErrReader(errors.New("connection reset"))))
			}
			return b, err
		}
		l, err := col.List(t.Context(), Query{})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := l.WriteTo(&b); err == nil || !strings.Contains(err.Error(), "cluster b") {
			t.Errorf("proto=%v: %v", f.Proto, err)
		}
		if err := decode(b.Bytes(), &corev1.ConfigMapList{}, f.Proto); err == nil {
			t.Errorf("proto=%v: half of a list is accepted", f.Proto)
		}
		l.Close()
	}
}

// TestListStreams checks that the first bytes are written before the last member's body ends, and that items
// are not buffered. The second member continues only after the items of the first are written.
func TestListStreams(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		c := threeStores(false, f, 1000, 1000)
		col := c.collection(&instance{})
		req := col.Fetch
		out := &notifyingWriter{first: make(chan struct{})}
		col.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
			b, err := req(ctx, m, a)
			if err == nil && m.Slot == 1 {
				head := io.LimitReader(b.ReadCloser, 500)
				b.ReadCloser = io.NopCloser(io.MultiReader(head, &gatedReader{b.ReadCloser, ctx, out.first}))
			}
			return b, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		l, err := col.List(ctx, Query{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.WriteTo(out); err != nil {
			t.Errorf("proto=%v: %v", f.Proto, err)
		}
		var got corev1.ConfigMapList
		if err := decode(out.b.Bytes(), &got, f.Proto); err != nil || len(got.Items) != 2000 {
			t.Errorf("proto=%v: %d items, %v", f.Proto, len(got.Items), err)
		}
		l.Close()
		cancel()
	}
}

// notifyingWriter is a writer that signals its first byte.
type notifyingWriter struct {
	b     bytes.Buffer
	first chan struct{}
}

func (n *notifyingWriter) Write(b []byte) (int, error) {
	if n.b.Len() == 0 {
		close(n.first)
	}
	return n.b.Write(b)
}

// AD-07: of objects with one name, the list has the copy of the earliest member.
func TestListOfCopies(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		c := threeStores(true, f, 2, 2, 2)
		c.stores[2].set("ns", "a0", "copy", 1)
		c.stores[1].set("ns", "a0", "copy", 1)
		c.stores[2].set("other", "a0", "no copy", 1)
		got, l, err := readList(t, c, Query{})
		if err != nil {
			t.Fatal(err)
		}
		if l.Dropped != 2 || len(got.Items) != 7 {
			t.Errorf("proto=%v: dropped %d of %v", f.Proto, l.Dropped, listNames(got.Items))
		}
		if !slices.Contains(listNames(got.Items), "a0@a") || slices.Contains(listNames(got.Items), "a0@b") {
			t.Errorf("%v", listNames(got.Items))
		}
	}
}

func TestListLearnsAndKeeps(t *testing.T) {
	c := threeStores(false, codec.Format{Proto: true}, 2, 2)
	c.stores[0].set("elsewhere", "x", "v", 1)
	c.keep = func(member string) func([]byte) bool {
		return func(ns []byte) bool { return (string(ns) == "elsewhere") != (member == "a") }
	}
	col := c.collection(&instance{})
	learned := map[string]string{}
	col.OnObject = func(m Member, ns, name []byte, here bool) {
		learned[string(ns)+"/"+string(name)] = fmt.Sprint(m.Name, here)
	}
	l, err := col.List(t.Context(), Query{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.WriteTo(io.Discard); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"ns/a0": "atrue", "ns/a1": "atrue"}; !maps.Equal(learned, want) {
		t.Errorf("%v", learned)
	}
}

// TestRelayError checks that the first member answers a request that the API refuses.
func TestRelayError(t *testing.T) {
	c := threeStores(false, codec.Format{}, 1, 1)
	c.stores[0].refuse = &codec.Status{Code: 422, Reason: "Invalid", Message: "sendInitialEvents is forbidden for list"}
	_, _, err := readList(t, c, Query{Initial: new(true)})
	switch {
	case code(err) != 422:
		t.Errorf("code(err) != 422; %v", err)
	case err.Error() != "sendInitialEvents is forbidden for list":
		t.Errorf("err.Error() = %q, want %q", err.Error(), "sendInitialEvents is forbidden for list")
	case len(c.stores[1].requests) != 0:
		t.Errorf("len(c.stores[1].requests) = %v, want 0", len(c.stores[1].requests))
	}
	c.stores[0].refuse = nil
	if _, _, err := readList(t, c, Query{Initial: new(true)}); code(err) != 400 {
		t.Errorf("a list of one member: %v", err)
	}
}

// TestForms checks that members with different encodings cause ErrMixedFormats, so that the HTTP layer can retry.
func TestForms(t *testing.T) {
	c := threeStores(false, codec.Format{}, 1, 1)
	col := c.collection(&instance{})
	col.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
		return c.stores[m.Slot].fetch(ctx, a, codec.Format{Proto: m.Slot == 0})
	}
	for _, limit := range []int64{0, 1} {
		if _, err := col.List(t.Context(), Query{Limit: limit}); !errors.Is(err, ErrMixedFormats) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, err := col.Watch(t.Context(), Query{Watch: true}, codec.Format{}); !errors.Is(err, ErrMixedFormats) {
		t.Errorf("%v", err)
	}
}

// ADP-16: (16) Tables with different columns are merged into one.
func TestTables(t *testing.T) {
	table := func(rv string, columns []string, rows ...[]any) []byte {
		tab := metav1.Table{ListMeta: metav1.ListMeta{ResourceVersion: rv}}
		tab.Kind, tab.APIVersion = "Table", "meta.k8s.io/v1"
		for _, c := range columns {
			tab.ColumnDefinitions = append(tab.ColumnDefinitions, metav1.TableColumnDefinition{Name: c, Type: "string"})
		}
		for _, r := range rows {
			m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r[0].(string), Namespace: "ns"}}
			tab.Rows = append(tab.Rows, metav1.TableRow{Cells: r[1:], Object: runtime.RawExtension{Object: m}})
		}
		b, err := json.Marshal(tab)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	bodies := [][]byte{
		table("12", []string{"Name", "Ready", "Age"}, []any{"x", "x", "1/1", "5d"}),
		table("99", []string{"Name", "Age", "Node"}, []any{"x", "x", "1d", "n1"}, []any{"y", "y", "2d", "n2"}),
	}
	for _, bare := range []bool{false, true} {
		col := &Collection{Members: []Member{{Slot: 0, Name: "east"}, {Slot: 1, Name: "west"}}, Epoch: 1, Width: 2, Spread: true, Bare: bare,
			Fetch: func(_ context.Context, m Member, _ MemberRequest) (*Body, error) {
				return &Body{io.NopCloser(bytes.NewReader(bodies[m.Slot])), codec.Format{Shape: codec.ShapeTable}}, nil
			}}
		l, err := col.List(t.Context(), Query{})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := l.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		var got metav1.Table
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatalf("%v: %s", err, b.Bytes())
		}
		switch {
		case l.Dropped != 1:
			t.Errorf("l.Dropped = %v, want 1; %s", l.Dropped, b.Bytes())
		case len(got.Rows) != 2:
			t.Errorf("len(got.Rows) = %v, want 2; %s", len(got.Rows), b.Bytes())
		case fmt.Sprint(got.Rows[0].Cells, got.Rows[1].Cells) != "[x 1/1 5d east] [y <nil> 2d west]":
			t.Errorf("got %q, want %q; %s",
				fmt.Sprint(got.Rows[0].Cells, got.Rows[1].Cells), "[x 1/1 5d east] [y <nil> 2d west]", b.Bytes())
		}
		switch n := len(got.ColumnDefinitions); {
		case n != 4:
			t.Errorf("n = %v, want 4; %s", n, b.Bytes())
		case got.ColumnDefinitions[3].Name != "Cluster":
			t.Errorf("got.ColumnDefinitions[3].Name = %q, want %q; %s", got.ColumnDefinitions[3].Name, "Cluster", b.Bytes())
		case got.ResourceVersion != (Vector{Epoch: 1, Fields: []uint64{12, 99}}).String():
			t.Errorf("got %q, want %q; %s", got.ResourceVersion, (Vector{Epoch: 1, Fields: []uint64{12, 99}}).String(), b.Bytes())
		}
		if object := string(got.Rows[0].Object.Raw); bare != (object == "null" || object == "") {
			t.Errorf("bare=%v: %s", bare, object)
		}
	}
}

// TestWatchOfASlowMember checks that a watch treats a member that takes more than 10 seconds as not
// responding.
func TestWatchOfASlowMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 1)
		c.stores[1].hang = true
		began := time.Now()
		_, err := c.collection(&instance{}).Watch(t.Context(), Query{Watch: true}, codec.Format{})
		switch {
		case code(err) != 503:
			t.Errorf("code(err) != 503; %v, %v", time.Since(began), err)
		case !strings.Contains(err.Error(), "cluster b"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "cluster b")
		case time.Since(began) != startTimeout:
			t.Errorf("time.Since(began) != startTimeout; %v, %v", time.Since(began), err)
		}
	})
}
