package gather

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Times of a Gatherer that leaves them out. They are short, for one change is often
// three decisions: a group is wanted, then a port of it, then the route. What must not
// come too often for Envoy Gateway, it is asked about less often.
const (
	Quiet  = 100 * time.Millisecond // without a further change, until a decision
	Latest = time.Second            // from the first change to the decision
)

// rests is how many times as long as a decision took it is until the next one: in a
// storm of changes to many objects, two thirds of the time are left to others.
const rests = 2

const (
	look      = 10 * time.Second // until kinds that are not served are asked for again
	refresh   = time.Minute      // until what is not watched is read again
	fillTime  = time.Minute      // for one kind's cache to fill
	readTime  = 20 * time.Second // for one thing that is not watched
	retryTime = 5 * time.Second  // after a fault
)

// A Gatherer decides anew when something changed. Fields without a remark are
// required.
type Gatherer struct {
	Namespace       string   // the operator's own
	ClusterDomain   string   // such as cluster.local
	Controller      string   // the controllerName of Envoy Gateway's classes
	EnvoyNamespace  string   // where Envoy Gateway makes its Services
	ProxyNamespaces []string // where groups may be besides; none is fine
	Addresses       bool     // relays are reached by their addresses, not by names

	Board *Board
	Log   *slog.Logger

	// LeftOut, optional, are the namespaces of groups in which may not be read now.
	// Whoever knows of a change calls Again.
	LeftOut func() []string

	// Publish, optional, gets each new snapshot, after the Board.
	Publish func(*gateway.Snapshot)

	// Measure, optional, hears of each decision: how long it took, and why there was
	// none.
	Measure func(took time.Duration, err error)

	// Quiet and Latest, optional, are how long changes are waited for.
	Quiet, Latest time.Duration

	// Build is gateway.Build where it is left out.
	Build func(gateway.Objects) gateway.Result

	cache   cache.Cache
	direct  client.Reader // to the API server
	changed chan struct{}
	follows map[string]bool // kinds whose caches are filled
	looked  time.Time       // when kinds that are not served were last asked for
	roots   map[gateway.Name]string
	wake    time.Duration // until the next look if nothing changes; 0 is never
	rested  time.Time     // when the next decision may be made
}

// Add makes the manager run the gatherer, whether or not it is the leader.
func (g *Gatherer) Add(mgr manager.Manager) error {
	if g.Namespace == "" || g.ClusterDomain == "" || g.Controller == "" || g.EnvoyNamespace == "" || g.Board == nil || g.Log == nil {
		return errors.New("the gatherer lacks a setting: namespaces, cluster domain, controller, board and log are required")
	}
	g.cache, g.direct = mgr.GetCache(), mgr.GetAPIReader()
	g.changed, g.follows, g.roots = make(chan struct{}, 1), map[string]bool{}, map[gateway.Name]string{}
	return mgr.Add(everywhere{g})
}

// everywhere runs on every replica.
type everywhere struct{ *Gatherer }

func (everywhere) NeedLeaderElection() bool { return false }

// Start gathers until ctx ends.
func (e everywhere) Start(ctx context.Context) error {
	e.run(ctx)
	return nil
}

func (g *Gatherer) run(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := g.once(ctx)
		if ctx.Err() != nil {
			return
		}
		g.Board.setFault(err)
		if err != nil {
			g.wake = retryTime
			if err.Error() != said {
				g.Log.Error("what is shown is not the newest: it cannot be gathered or decided", "err", err)
			}
			said = err.Error()
		} else if said != "" {
			g.Log.Info("gathered and decided again")
			said = ""
		}
		g.wait(ctx)
	}
}

// wait returns when there is something to decide upon: some time after a change,
// in which others may follow it, or when it is time to look anyway.
func (g *Gatherer) wait(ctx context.Context) {
	var due <-chan time.Time
	if g.wake > 0 {
		due = time.After(g.wake)
	}
	select {
	case <-g.changed:
	case <-due:
		return
	case <-ctx.Done():
		return
	}
	latest := time.After(max(cmp.Or(g.Latest, Latest), time.Until(g.rested)))
	for {
		quiet := time.NewTimer(max(cmp.Or(g.Quiet, Quiet), time.Until(g.rested)))
		select {
		case <-g.changed:
			quiet.Stop()
		case <-quiet.C:
			return
		case <-latest:
			quiet.Stop()
			return
		case <-ctx.Done():
			quiet.Stop()
			return
		}
	}
}

// once gathers, decides and shows.
func (g *Gatherer) once(ctx context.Context) (err error) {
	began := time.Now()
	defer func() {
		if g.Measure != nil && ctx.Err() == nil {
			g.Measure(time.Since(began), err)
		}
	}()
	g.wake = 0
	objects, err := g.gather(ctx)
	if err != nil {
		return err
	}
	began = time.Now() // waiting for caches is no work
	result, err := g.decide(objects)
	g.rested = time.Now().Add(rests * time.Since(began))
	if err != nil {
		return err
	}
	defer g.Board.setSeen(generations(objects)) // after what was decided
	if was := g.Board.Result(); was == nil || !reflect.DeepEqual(was, result) {
		g.Board.Post(result)
		if g.Publish != nil {
			g.Publish(result.Snapshot)
		}
	}
	return nil
}

// generations are those of the operator's own kinds, by UID.
func generations(o gateway.Objects) map[types.UID]int64 {
	seen := make(map[types.UID]int64, len(o.Groups)+len(o.Services)+len(o.Attachments)+len(o.Policies))
	for _, x := range o.Groups {
		seen[x.UID] = x.Generation
	}
	for _, x := range o.Services {
		seen[x.UID] = x.Generation
	}
	for _, x := range o.Attachments {
		seen[x.UID] = x.Generation
	}
	for _, x := range o.Policies {
		seen[x.UID] = x.Generation
	}
	return seen
}

// decide turns a panic of the decision, which only an object can cause that nobody
// thought of, into a fault: what was decided before stays.
func (g *Gatherer) decide(objects gateway.Objects) (result *gateway.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the decision failed: %v", p)
			g.Log.Error("the decision failed", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	build := g.Build
	if build == nil {
		build = gateway.Build
	}
	r := build(objects)
	return &r, nil
}

// Again makes the gatherer decide anew, although none of the objects has changed. It was
// added to a manager before.
func (g *Gatherer) Again() { g.touch() }

// touch says that something changed.
func (g *Gatherer) touch() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// follow fills the cache of a kind and hears of its changes from then on.
func (g *Gatherer) follow(ctx context.Context, kind string, o client.Object) error {
	if g.follows[kind] {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	informer, err := g.cache.GetInformer(limited, o)
	if err != nil {
		return fmt.Errorf("the cache of %s does not fill; may this account list and watch them? %w", kind, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { g.touch() },
		DeleteFunc: func(any) { g.touch() },
		UpdateFunc: func(was, is any) {
			if matters(was, is) {
				g.touch()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("follow %s: %w", kind, err)
	}
	g.follows[kind] = true
	return nil
}
