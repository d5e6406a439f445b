package merge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// reflectorSource is a source of lists and watches for client-go's reflector.
type reflectorSource struct {
	c *clusters

	mu    sync.Mutex
	reads []string // the requests for the whole collection
	cut   func()   // breaks off the watch
}

func (s *reflectorSource) query(o metav1.ListOptions, watches bool) Query {
	v, err := scheme.ParameterCodec.EncodeParameters(&o, schema.GroupVersion{Version: "v1"})
	if err != nil {
		panic(err)
	}
	q := ParseQuery(v, watches)
	if !watches || q.wantsInitial() {
		s.mu.Lock()
		s.reads = append(s.reads, v.Encode())
		s.mu.Unlock()
	}
	return q
}

// seen returns the requests for the whole collection so far.
func (s *reflectorSource) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

// breakOff ends the current watch.
func (s *reflectorSource) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
}

func apiError(err error) error {
	if s, ok := errors.AsType[*codec.Status](err); ok {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(s.Code), Reason: metav1.StatusReason(s.Reason), Message: s.Message}}
	}
	return err
}

func (s *reflectorSource) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	l, err := s.c.collection(&instance{}).List(ctx, s.query(o, false))
	if err != nil {
		return nil, apiError(err)
	}
	defer l.Close()
	var b bytes.Buffer
	if _, err := l.WriteTo(&b); err != nil {
		return nil, err
	}
	all := &corev1.ConfigMapList{}
	return all, decode(b.Bytes(), all, s.c.format.Proto)
}

func (s *reflectorSource) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := s.c.collection(&instance{}).Watch(ctx, s.query(o, true), s.c.format)
	if err != nil {
		cancel()
		return nil, apiError(err)
	}
	s.mu.Lock()
	s.cut = cancel
	s.mu.Unlock()
	r := &reflectorWatch{proto: s.c.format.Proto, ctx: ctx, cancel: cancel, events: make(chan watch.Event)}
	go func() {
		defer close(r.events)
		_ = w.Run(ctx, r) // client-go sees only the events
	}()
	return r, nil
}

// reflectorWatch is a merged watch as client-go sees it.
type reflectorWatch struct {
	proto  bool
	ctx    context.Context
	cancel context.CancelFunc
	events chan watch.Event
}

func (r *reflectorWatch) ResultChan() <-chan watch.Event { return r.events }
func (r *reflectorWatch) Stop()                          { r.cancel() }
func (r *reflectorWatch) Flush() error                   { return nil }

func (r *reflectorWatch) Event(b []byte) error {
	typ, o, status, err := decodeEvent(b, r.proto)
	if err != nil {
		return err
	}
	e := watch.Event{Type: watch.EventType(typ), Object: o}
	if status != nil {
		e.Object = status
	}
	select {
	case r.events <- e:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// TestReflectorListsOnce checks client-go's informers after a watch breaks off between an event and the next bookmark.
// The number of the event is no position of the collection. An informer lists again exactly once, and reports every
// change that it missed.
func TestReflectorListsOnce(t *testing.T) {
	for _, watchList := range []bool{false, true} {
		for _, proto := range []bool{false, true} {
			t.Run(fmt.Sprintf("watch-list %v, protobuf %v", watchList, proto), func(t *testing.T) {
				featuretesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, watchList)
				synctest.Test(t, func(t *testing.T) { reflectorListsOnce(t, codec.Format{Proto: proto}, watchList) })
			})
		}
	}
}

func reflectorListsOnce(t *testing.T, format codec.Format, watchList bool) {
	s := &reflectorSource{c: threeStores(false, format, 2, 2, 2)}
	var mu sync.Mutex
	var got []string
	record := func(what string, o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		cm := o.(*corev1.ConfigMap)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, what+" "+cm.Name+" "+cm.Data["value"])
	}
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: s.list, WatchFuncWithContext: s.watch}, &corev1.ConfigMap{}, 0, cache.Indexers{})
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { record("add", o) }, DeleteFunc: func(o any) { record("delete", o) },
		UpdateFunc: func(old, o any) {
			if old.(*corev1.ConfigMap).ResourceVersion != o.(*corev1.ConfigMap).ResourceVersion {
				record("update", o)
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	time.Sleep(time.Minute)
	if reads := s.seen(); len(reads) != 1 || strings.Contains(reads[0], "sendInitialEvents") != watchList {
		t.Fatalf("at the start it read %q", reads)
	}
	mu.Lock()
	got = nil
	mu.Unlock()

	s.c.stores[0].set("ns", "a0", "first", 1)
	synctest.Wait() // the event has arrived; the next bookmark follows after 100 ms
	s.breakOff()
	s.c.stores[0].set("ns", "a1", "missed", 1)
	s.c.stores[1].remove("ns", "b0", 1)
	s.c.stores[2].set("ns", "new", "missed", 1)
	time.Sleep(time.Minute)
	s.c.stores[2].set("ns", "c1", "later", 1)
	time.Sleep(time.Minute)

	mu.Lock()
	defer mu.Unlock()
	slices.Sort(got)
	if want := []string{"add new missed", "delete b0 v", "update a0 first", "update a1 missed", "update c1 later"}; !slices.Equal(got, want) {
		t.Errorf("it reported %q, want %q", got, want)
	}
	if reads := s.seen(); len(reads) != 2 {
		t.Errorf("it read everything %d times, want twice: %q", len(reads), reads)
	}
	cancel()
	running.Wait()
}
