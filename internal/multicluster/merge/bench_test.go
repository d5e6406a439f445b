package merge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// aPod returns a pod of typical size, about 3 kB in JSON.
func aPod(member, i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d-%d", member, i), Namespace: fmt.Sprint("ns-", i%20), UID: "5d0f2c1e-0000-4000-8000-000000000000", ResourceVersion: fmt.Sprint(1000 + i),
		Labels: map[string]string{"app": "a", "pod-template-hash": "abcdef"}}}
	p.Kind, p.APIVersion = "Pod", "v1"
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{` + strings.Repeat(`"f:labels":{".":{},"f:app":{}},`, 15) + `"f:x":{}}}`)}}
	for c := range 3 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", c), Image: "registry.example/image:v1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "QUOTE", Value: `"\`}},
			VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}}})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint("c", c), Ready: true, Image: "registry.example/image:v1"})
	}
	return p
}

func rawPod(p *corev1.Pod) k8sruntime.RawExtension {
	return k8sruntime.RawExtension{Raw: bytes.TrimSpace(encode(p, false))}
}

func encodePodEvent(p *corev1.Pod) []byte { return encodeEvent("MODIFIED", p, true) }

func podList(b testing.TB, member, n int, proto bool) []byte {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "48213"}}
	l.Kind, l.APIVersion = "PodList", "v1"
	for i := range n {
		l.Items = append(l.Items, *aPod(member, i))
	}
	if proto {
		return encode(l, true)
	}
	out, err := json.Marshal(l)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// BenchmarkList merges three lists of 10,000 pods. "copy" only copies the same bytes, as an upper bound.
func BenchmarkList(b *testing.B) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		var bodies [][]byte
		size := 0
		for m := range 3 {
			bodies = append(bodies, podList(b, m, 10_000, f.Proto))
			size += len(bodies[m])
		}
		name := map[bool]string{false: "json", true: "protobuf"}[f.Proto]
		b.Run(name+"/copy", func(b *testing.B) {
			b.SetBytes(int64(size))
			buf := make([]byte, 32<<10)
			for b.Loop() {
				for _, body := range bodies {
					if _, err := io.CopyBuffer(plainWriter{}, struct{ io.Reader }{bytes.NewReader(body)}, buf); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		for _, spread := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/merge,spread=%v", name, spread), func(b *testing.B) {
				c := &Collection{Epoch: 1, Width: 3, Spread: spread}
				for i := range 3 {
					c.Members = append(c.Members, Member{Slot: i, Name: fmt.Sprint(i)})
				}
				c.Fetch = func(_ context.Context, m Member, _ MemberRequest) (*Body, error) {
					return &Body{io.NopCloser(bytes.NewReader(bodies[m.Slot])), f}, nil
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					l, err := c.List(b.Context(), Query{})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := l.WriteTo(plainWriter{}); err != nil {
						b.Fatal(err)
					}
					l.Close()
				}
			})
		}
	}
}

type plainWriter struct{}

func (plainWriter) Write(b []byte) (int, error) { return len(b), nil }

// countingSink lets a benchmark wait for a number of events.
type countingSink struct {
	FrameWriter
	n    int
	want int
	done func()
}

func (s *countingSink) Event(b []byte) error {
	if s.n++; s.n == s.want {
		defer s.done()
	}
	return s.FrameWriter.Event(b)
}

// BenchmarkWatch sends events of pods through a merged watch of three members. events/s is for all available
// cores, so run it with -cpu 1.
func BenchmarkWatch(b *testing.B) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		for _, spread := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s,spread=%v", map[bool]string{false: "json", true: "protobuf"}[f.Proto], spread), func(b *testing.B) {
				const each = 4000
				var streams [3][]byte
				for m := range streams {
					for i := range each {
						var raw []byte
						if f.Proto {
							raw = encodePodEvent(aPod(m, i))
						} else {
							raw, _ = json.Marshal(metav1.WatchEvent{Type: "MODIFIED", Object: rawPod(aPod(m, i))})
							raw = append(raw, '\n')
						}
						streams[m] = append(streams[m], raw...)
					}
				}
				b.SetBytes(int64(len(streams[0]) / each))
				b.ReportAllocs()
				sent := 0
				b.ResetTimer()
				began := time.Now()
				for sent < b.N {
					ctx, cancel := context.WithCancel(b.Context())
					c := &Collection{Epoch: 1, Width: 3, Spread: spread}
					for i := range 3 {
						c.Members = append(c.Members, Member{Slot: i, Name: fmt.Sprint(i)})
					}
					c.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
						if a.Names {
							return &Body{io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"1"},"items":[]}`)), codec.Format{Shape: codec.ShapeMetadata}}, nil
						}
						return &Body{&endlessReader{bytes.NewReader(streams[m.Slot]), ctx}, f}, nil
					}
					w, err := c.Watch(ctx, Query{Watch: true, Bookmarks: true, RV: Vector{Epoch: 1, Fields: []uint64{5, 5, 5}}.String()}, f)
					if err != nil {
						b.Fatal(err)
					}
					sink := &countingSink{FrameWriter: FrameWriter{Out: plainWriter{}, Proto: f.Proto, FlushFunc: func() error { return nil }}, want: 3 * each, done: cancel}
					_ = w.Run(ctx, sink) // ends because ctx is cancelled
					sent += 3 * each
				}
				b.ReportMetric(float64(sent)/time.Since(began).Seconds(), "events/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// endlessReader is a reader that blocks after its content until it is closed.
type endlessReader struct {
	r   *bytes.Reader
	ctx context.Context
}

func (e *endlessReader) Read(b []byte) (int, error) {
	if n, err := e.r.Read(b[:min(len(b), 16<<10)]); err == nil {
		return n, nil
	}
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}

func (*endlessReader) Close() error { return nil }

// TestWatchMemory checks that 500 watches of 3 members stay within 64 MiB after they received events.
func TestWatchMemory(t *testing.T) {
	const watches = 500
	var stream []byte
	for i := range 20 {
		raw, err := json.Marshal(metav1.WatchEvent{Type: "MODIFIED", Object: rawPod(aPod(0, i))})
		if err != nil {
			t.Fatal(err)
		}
		stream = append(append(stream, raw...), '\n')
	}
	used := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	ctx, cancel := context.WithCancel(t.Context())
	var seen, ended sync.WaitGroup
	errs := make(chan error, watches)
	for range watches {
		c := &Collection{Epoch: 1, Width: 3}
		for i := range 3 {
			c.Members = append(c.Members, Member{Slot: i, Name: fmt.Sprint(i)})
		}
		c.Fetch = func(ctx context.Context, _ Member, _ MemberRequest) (*Body, error) {
			return &Body{&endlessReader{bytes.NewReader(stream), ctx}, codec.Format{}}, nil
		}
		w, err := c.Watch(ctx, Query{Watch: true, RV: Vector{Epoch: 1, Fields: []uint64{5, 5, 5}}.String()}, codec.Format{})
		if err != nil {
			t.Fatal(err)
		}
		seen.Add(1)
		ended.Go(func() {
			if err := w.Run(ctx, &countingSink{FrameWriter: FrameWriter{Out: plainWriter{}, FlushFunc: func() error { return nil }}, want: 60, done: seen.Done}); ctx.Err() == nil {
				errs <- err
			}
		})
	}
	all := make(chan struct{})
	go func() { seen.Wait(); close(all) }()
	select {
	case <-all:
	case err := <-errs:
		t.Errorf("a watch ended: %v", err)
	case <-time.After(2 * time.Minute):
		t.Error("events are missing")
	}
	took := int64(used()) - int64(before)
	t.Logf("%d watches of 3 members: %.1f MiB", watches, float64(took)/(1<<20))
	if took > 64<<20 {
		t.Errorf("%d MiB", took>>20)
	}
	cancel()
	ended.Wait()
}
