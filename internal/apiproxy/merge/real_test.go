package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.dev}
spec:
  group: example.dev
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

const widget = `apiVersion: example.dev/v1
kind: Widget
metadata: {namespace: %s, name: w-%[1]s, labels: {part: merge}}
spec: {braces: "}]\""}
`

const configMap = `apiVersion: v1
kind: ConfigMap
metadata: {namespace: %s, name: %s, labels: {part: merge}}
data: {quote: "\"}]"}
`

// realCollection creates two members from one real API server. Each has the objects of one namespace.
func realCollection(client *http.Client, server, path, accept string, shape wire.Shape) *Collection {
	c := &Collection{Epoch: 1, Width: 2, Hash: "0123456789abcdef", Ring: new(position.Ring)}
	for i, name := range []string{"east", "west"} {
		c.Members = append(c.Members, Member{Slot: i, Name: name, Keep: func(ns []byte) bool { return string(ns) == name }})
	}
	c.Ask = func(ctx context.Context, m Member, a position.Ask) (*Body, error) {
		v := url.Values{"labelSelector": {"part=merge"}}
		a.Set(v)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path+"?"+v.Encode(), nil)
		if err != nil {
			return nil, err
		}
		if a.Watch {
			req.Header.Set("Accept", strings.Replace(accept, "MetadataList", "Metadata", 1))
		} else {
			req.Header.Set("Accept", accept)
		}
		req.Header.Set("Accept-Encoding", "identity")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		form, ok := wire.ParseForm(resp.Header.Get("Content-Type"))
		if resp.StatusCode != http.StatusOK || !ok {
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				return nil, err
			}
			return nil, wire.ParseStatus(b, form.Proto, resp.StatusCode)
		}
		form.Shape = shape
		return &Body{resp.Body, form}, nil
	}
	return c
}

// TestRealServer (7) (9) (16) reads the output of a real API server: typed and custom objects, JSON and
// protobuf, Tables and metadata, in lists, pages and watches.
func TestRealServer(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP real API server: -short")
	}
	cluster := kubetest.New(t, kubetest.Options{Name: "merge", NoControllers: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	apply := func(documents ...string) error {
		var b [][]byte
		for _, d := range documents {
			b = append(b, []byte(d))
		}
		return cluster.Apply(ctx, b...)
	}
	eventually := func(what string, f func() error) {
		t.Helper()
		for {
			err := f()
			if err == nil {
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	eventually("set up", func() error {
		return apply(widgets, "apiVersion: v1\nkind: Namespace\nmetadata: {name: east}", "apiVersion: v1\nkind: Namespace\nmetadata: {name: west}")
	})
	for _, ns := range []string{"east", "west"} {
		for i := range 3 {
			if err := apply(fmt.Sprintf(configMap, ns, fmt.Sprintf("cm-%s-%d", ns, i))); err != nil {
				t.Fatal(err)
			}
		}
		eventually("a widget", func() error { return apply(fmt.Sprintf(widget, ns)) })
	}
	client, err := rest.HTTPClientFor(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	const cms, ws = "/api/v1/configmaps", "/apis/example.dev/v1/widgets"
	allCMs := []string{"cm-east-0", "cm-east-1", "cm-east-2", "cm-west-0", "cm-west-1", "cm-west-2"}
	for _, row := range []struct {
		why, path, accept string
		shape             wire.Shape
		want              []string
	}{
		{"typed, JSON", cms, "application/json", wire.Objects, allCMs},
		{"typed, protobuf", cms, "application/vnd.kubernetes.protobuf", wire.Objects, allCMs},
		{"metadata, JSON", cms, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", wire.Metadata, allCMs},
		{"metadata, protobuf", cms, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", wire.Metadata, allCMs},
		{"table", cms, "application/json;as=Table;v=v1;g=meta.k8s.io", wire.Table, allCMs},
		{"custom", ws, "application/json", wire.Objects, []string{"w-east", "w-west"}},
		{"custom, table", ws, "application/json;as=Table;v=v1;g=meta.k8s.io", wire.Table, []string{"w-east", "w-west"}},
	} {
		t.Run(row.why, func(t *testing.T) {
			c := realCollection(client, cluster.Server, row.path, row.accept, row.shape)
			var rv string
			for _, limit := range []int64{0, 1, 2, 4} {
				var got []string
				q := position.Query{Limit: limit}
				for {
					l, err := c.List(ctx, q)
					if err != nil {
						t.Fatal(err)
					}
					var b bytes.Buffer
					if _, err := l.WriteTo(&b); err != nil {
						t.Fatal(err)
					}
					l.Close()
					again := wire.NewList(bytes.NewReader(b.Bytes()), wire.Form{Proto: l.Form.Proto, Shape: row.shape})
					// A vector is not a 64-bit number, so this reader reads everything else.
					if !l.Form.Proto {
						var head struct {
							Metadata metav1.ListMeta
						}
						if err := json.Unmarshal(b.Bytes(), &head); err != nil {
							t.Fatalf("%v: %s", err, b.Bytes())
						}
						rv, q.Continue = head.Metadata.ResourceVersion, head.Metadata.Continue
						again = wire.NewList(strings.NewReader(strings.Replace(b.String(), rv, "1", 1)), wire.Form{Shape: row.shape})
					} else {
						var envelope runtime.Unknown
						var list metav1.PartialObjectMetadataList // every list decodes as one, if unknown fields are skipped
						if err := envelope.Unmarshal(b.Bytes()[4:]); err != nil {
							t.Fatal(err)
						}
						if err := list.Unmarshal(envelope.Raw); err != nil {
							t.Fatal(err)
						}
						rv, q.Continue = list.ResourceVersion, list.Continue
						for _, o := range list.Items {
							if o.Namespace == "east" || o.Namespace == "west" {
								got = append(got, o.Name)
							}
						}
					}
					if !l.Form.Proto {
						if err := eachItem(again, func() { got = append(got, string(again.Name)) }); err != nil {
							t.Fatalf("%v: %s", err, b.Bytes())
						}
					}
					if q.Continue == "" {
						break
					}
				}
				if !slices.Equal(got, row.want) {
					t.Errorf("limit %d: %v, not %v", limit, got, row.want)
				}
			}
			realWatch(ctx, t, c, row.want, rv, func(step int) error {
				name := fmt.Sprintf("new-%d", len(row.want))
				document := strings.Replace(fmt.Sprintf(configMap, "west", name), "quote", fmt.Sprint("step", step), 1)
				if row.path == ws {
					document = strings.Replace(fmt.Sprintf(widget, "west"), "w-west", name, 1)
					document = strings.Replace(document, "braces", fmt.Sprint("step", step), 1)
				}
				if step < 2 {
					return apply(document)
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodDelete, cluster.Server+strings.Replace(row.path, "/v1/", "/v1/namespaces/west/", 1)+"/"+name, nil)
				if err != nil {
					return err
				}
				resp, err := client.Do(req)
				if err != nil {
					return err
				}
				return resp.Body.Close()
			})
		})
	}
}

// sawSink collects a summary of events.
type sawSink struct {
	mu   sync.Mutex
	form wire.Form
	saw  []string
}

func (s *sawSink) Flush() error { return nil }
func (s *sawSink) Event(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ev wire.Event
	err := wire.NewEvents(bytes.NewReader(wire.AppendFrame(nil, b, s.form.Proto)), s.form, nil, nil).Next(&ev)
	if ev.Type == wire.Bookmark { // its position is a vector, which that reader does not accept
		if ev.InitialEnd || bytes.Contains(b, []byte("initial-events-end")) {
			s.saw = append(s.saw, "end")
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, b)
	}
	s.saw = append(s.saw, ev.Type.String()+" "+string(ev.Name))
	return nil
}

func realWatch(ctx context.Context, t *testing.T, c *Collection, there []string, rv string, change func(step int) error) {
	t.Helper()
	name := fmt.Sprintf("new-%d", len(there))
	for _, q := range []position.Query{
		{Watch: true, Initial: new(true), Match: "NotOlderThan", Bookmarks: true},
		{Watch: true, RV: rv, Bookmarks: true},
		{Watch: true},
	} {
		ctx, cancel := context.WithCancel(ctx)
		w, err := c.Watch(ctx, q, wire.Form{})
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		sink := &sawSink{form: w.Form}
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx, sink) }()
		wait := func(want string) {
			t.Helper()
			for {
				sink.mu.Lock()
				saw := slices.Contains(sink.saw, want)
				sink.mu.Unlock()
				if saw {
					return
				}
				select {
				case err := <-done:
					cancel()
					t.Fatalf("ended with %v after %v", err, sink.saw)
				case <-ctx.Done():
					t.Fatalf("no %s among %v", want, sink.saw)
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		if q.RV == "" {
			for _, n := range there {
				wait("ADDED " + n)
			}
		}
		if q.Initial != nil {
			wait("end")
		}
		for step, want := range []string{"ADDED ", "MODIFIED ", "DELETED "} {
			if err := change(step); err != nil {
				t.Fatal(err)
			}
			wait(want + name)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		if q.RV != "" && strings.Contains(fmt.Sprint(sink.saw), there[0]) {
			t.Errorf("from its position it saw %v", sink.saw)
		}
	}
}
