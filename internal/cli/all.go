package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/signin"
)

// atOnce is how many clusters tka queries concurrently.
const atOnce = 8

// A lockedWriter serialises concurrent writes; each write is one line.
type lockedWriter struct {
	mu sync.Mutex
	io.Writer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(b)
}

// A place is one of several clusters that a command works on.
type place struct{ cluster, server string }

// signedIn returns the clusters that this machine signed in to.
func (t *tka) signedIn() (places []place, err error) {
	k, err := t.known()
	if err != nil {
		return nil, err
	}
	for _, s := range k.Servers {
		if s.Chosen {
			places = append(places, place{s.Cluster, s.URL})
		}
	}
	return places, nil
}

// each calls do for each place, at most atOnce at a time. It returns the outcomes in the order of places.
func each[T any](ctx context.Context, t *tka, places []place, do func(ctx context.Context, one *tka, at place) (T, error)) []outcome[T] {
	all := make([]outcome[T], len(places))
	errs := &lockedWriter{Writer: t.Err}
	turns := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, at := range places {
		all[i].place = at
		one := *t // with a separate client and flags
		one.Err = errs
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			all[i].value, all[i].err = do(ctx, &one, at)
		})
	}
	wg.Wait()
	return all
}

// An outcome is the result for one of several clusters.
type outcome[T any] struct {
	place
	value T
	err   error
}

// commonCode returns the exit code for several outcomes: 0 if all succeeded, their code if all failed with the same one, and else 1.
func commonCode[T any](all []outcome[T]) int {
	code := fault.Done
	for i, o := range all {
		c := fault.CodeOf(o.err)
		switch {
		case i == 0:
			code = c
		case c != code:
			return fault.Failed
		}
	}
	return code
}

func sentence(err error) string {
	if f, ok := errors.AsType[*fault.Fault](err); ok {
		return f.Message
	}
	return fmt.Sprint(err)
}

// ended returns nil for code 0, and otherwise an error that ends the program with that code.
func ended(code int) error {
	if code == fault.Done {
		return nil
	}
	return fault.Child(code)
}

// loginAll signs in to every cluster that this machine signed in to before, and to those that the server of the settings verified. It
// reports each other cluster of that server's list with the reason, so that no cluster is left out silently.
func (t *tka) loginAll(ctx context.Context, lf loginFlags, set *memory.Settings) error {
	places, err := t.everywhere(ctx)
	if err != nil {
		return err
	}
	all := each(ctx, t, places, func(ctx context.Context, one *tka, at place) (loginResult, error) {
		lf := lf
		lf.cluster = at.cluster
		res, _, err := one.loginTo(ctx, lf, set)
		return res, err
	})
	type item struct {
		loginResult
		Error string `json:"error"`
	}
	list := struct {
		meta
		Items []item `json:"items"`
	}{meta: kind("LoginList"), Items: []item{}}
	var names []string
	var rows [][]screen.Cell
	for _, o := range all {
		it := item{loginResult: o.value}
		it.meta, it.Cluster, it.Server = kind("Login"), cmp.Or(o.cluster, it.Cluster), cmp.Or(it.Server, o.server)
		if o.err != nil {
			it.Error = sentence(o.err)
			it.Namespaces, it.MissingNamespaces, it.Kubeconfig = []string{}, []string{}, []string{}
			rows = append(rows, append(screen.Row(o.cluster, "", ""), screen.Colored(screen.Red, "failed"), screen.Cell{Text: it.Error}))
		} else {
			names = append(names, it.Context)
			rows = append(rows, append(screen.Row(o.cluster, it.Username, it.Role), screen.Colored(screen.Green, "ready"), screen.Cell{Text: "until " + t.moment(it.Until)}))
		}
		list.Items = append(list.Items, it)
	}
	err = t.show(answer{object: list, names: names, table: func(bool) {
		t.writeTable(t.Out, []string{"CLUSTER", "USER", "ROLE", "STATE", ""}, rows)
	}})
	if err != nil {
		return err
	}
	return ended(commonCode(all))
}

// logoutAll signs out of every cluster that this machine signed in to.
func (t *tka) logoutAll(ctx context.Context, dryRun bool) error {
	places, err := t.signedIn()
	if err != nil {
		return err
	}
	all := each(ctx, t, places, func(ctx context.Context, one *tka, at place) (logoutResult, error) {
		return one.logoutOf(ctx, at.cluster, dryRun)
	})
	type item struct {
		logoutResult
		Error string `json:"error"`
	}
	items := struct {
		meta
		Items []item `json:"items"`
	}{meta: kind("LogoutList"), Items: []item{}}
	var names []string
	for _, o := range all {
		it := item{logoutResult: o.value}
		it.meta, it.Cluster, it.Server = kind("Logout"), o.cluster, o.server
		it.Removed, it.Kubeconfig = list(it.Removed), list(it.Kubeconfig)
		if o.err != nil {
			it.Error = sentence(o.err)
		}
		names = append(names, it.Removed...)
		items.Items = append(items.Items, it)
	}
	err = t.show(answer{object: items, names: names, table: func(bool) {
		for _, it := range items.Items {
			if it.Error != "" {
				fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf("Not signed out of %s: %s", it.Cluster, it.Error)))
				continue
			}
			t.tellLogout(it.logoutResult)
		}
	}})
	if err != nil {
		return err
	}
	return ended(commonCode(all))
}

// statusAll shows the sign-ins to all places. If the device is signed in to some of them only, the others show as "none". If it is signed
// in to none, the exit code is 3.
func (t *tka) statusAll(ctx context.Context, places []place) error {
	all := each(ctx, t, places, func(ctx context.Context, one *tka, at place) (statusItem, error) {
		return one.statusOf(ctx, at.cluster)
	})
	items := statusList{meta: kind("SigninList"), Items: []statusItem{}}
	none := 0
	for i, o := range all {
		it := o.value
		switch {
		case notSignedIn(o.err):
			none++
			it = statusItem{meta: kind("Signin"), Server: o.server}
			it.Cluster, it.State = o.cluster, "none"
			all[i].err = nil
		case o.err != nil:
			it = statusItem{meta: kind("Signin"), Server: o.server, Error: sentence(o.err)}
			it.Cluster, it.State = o.cluster, "unknown"
		}
		it.Namespaces, it.MissingNamespaces = list(it.Namespaces), list(it.MissingNamespaces)
		items.Items = append(items.Items, it)
	}
	if err := t.showStatus(items); err != nil {
		return err
	}
	if none == len(all) {
		return fault.Child(fault.Refused)
	}
	return ended(commonCode(all))
}

// left returns the time until a sign-in ends, for people.
func (t *tka) left(st signin.Status) string {
	at, err := time.Parse(time.RFC3339, st.Until)
	if err != nil {
		return ""
	}
	return screen.Short(max(0, at.Sub(t.Now())))
}
