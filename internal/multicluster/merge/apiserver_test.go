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

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
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
func realCollection(client *http.Client, server, path, accept string, shape codec.Shape) *Collection {
	c := &Collection{Epoch: 1, Width: 2, Hash: "0123456789abcdef"}
	for i, name := range []string{"east", "west"} {
		c.Members = append(c.Members, Member{Slot: i, Name: name, Keep: func(ns []byte) bool { return string(ns) == name }})
	}
	c.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
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
		format, ok := codec.ParseFormat(resp.Header.Get("Content-Type"))
		if resp.StatusCode != http.StatusOK || !ok {
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				return nil, err
			}
			return nil, codec.ParseStatus(b, format.Proto, resp.StatusCode)
		}
		format.Shape = shape
		return &Body{resp.Body, format}, nil
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
		shape             codec.Shape
		want              []string
	}{
		{"typed, JSON", cms, "application/json", codec.ShapeObjects, allCMs},
		{"typed, protobuf", cms, "application/vnd.kubernetes.protobuf", codec.ShapeObjects, allCMs},
		{"metadata, JSON", cms, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", codec.ShapeMetadata, allCMs},
		{"metadata, protobuf", cms, "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", codec.ShapeMetadata, allCMs},
		{"table", cms, "application/json;as=Table;v=v1;g=meta.k8s.io", codec.ShapeTable, allCMs},
		{"custom", ws, "application/json", codec.ShapeObjects, []string{"w-east", "w-west"}},
		{"custom, table", ws, "application/json;as=Table;v=v1;g=meta.k8s.io", codec.ShapeTable, []string{"w-east", "w-west"}},
	} {
		t.Run(row.why, func(t *testing.T) {
			c := realCollection(client, cluster.Server, row.path, row.accept, row.shape)
			var rv string
			for _, limit := range []int64{0, 1, 2, 4} {
				var got []string
				q := Query{Limit: limit}
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
					again := codec.NewListReader(bytes.NewReader(b.Bytes()), codec.Format{Proto: l.Format.Proto, Shape: row.shape})
					// A vector is not a 64-bit number, so this reader reads everything else.
					if !l.Format.Proto {
						var head struct {
							Metadata metav1.ListMeta
						}
						if err := json.Unmarshal(b.Bytes(), &head); err != nil {
							t.Fatalf("%v: %s", err, b.Bytes())
						}
						rv, q.Continue = head.Metadata.ResourceVersion, head.Metadata.Continue
						again = codec.NewListReader(strings.NewReader(strings.Replace(b.String(), rv, "1", 1)), codec.Format{Shape: row.shape})
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
					if !l.Format.Proto {
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

// recordingSink collects a summary of events.
type recordingSink struct {
	mu     sync.Mutex
	format codec.Format
	events []string
}

func (s *recordingSink) Flush() error { return nil }
func (s *recordingSink) Event(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ev codec.Event
	err := codec.NewEventReader(bytes.NewReader(codec.AppendFrame(nil, b, s.format.Proto)), s.format, nil, nil).Next(&ev)
	if ev.Type == codec.EventBookmark { // its position is a vector, which that reader does not accept
		if ev.InitialEnd || bytes.Contains(b, []byte("initial-events-end")) {
			s.events = append(s.events, "end")
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, b)
	}
	s.events = append(s.events, ev.Type.String()+" "+string(ev.Name))
	return nil
}

func realWatch(ctx context.Context, t *testing.T, c *Collection, there []string, rv string, change func(step int) error) {
	t.Helper()
	name := fmt.Sprintf("new-%d", len(there))
	for _, q := range []Query{
		{Watch: true, Initial: new(true), Match: "NotOlderThan", Bookmarks: true},
		{Watch: true, RV: rv, Bookmarks: true},
		{Watch: true},
	} {
		ctx, cancel := context.WithCancel(ctx)
		w, err := c.Watch(ctx, q, codec.Format{})
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		sink := &recordingSink{format: w.Format}
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx, sink) }()
		wait := func(want string) {
			t.Helper()
			for {
				sink.mu.Lock()
				found := slices.Contains(sink.events, want)
				sink.mu.Unlock()
				if found {
					return
				}
				select {
				case err := <-done:
					cancel()
					t.Fatalf("ended with %v after %v", err, sink.events)
				case <-ctx.Done():
					t.Fatalf("no %s among %v", want, sink.events)
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
		if q.RV != "" && strings.Contains(fmt.Sprint(sink.events), there[0]) {
			t.Errorf("from its position, it received %v", sink.events)
		}
	}
}
