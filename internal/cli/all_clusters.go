package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/output"
)

// maxConcurrent is how many clusters tka queries concurrently.
const maxConcurrent = 8

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

// A target is one of several clusters that a command works on.
type target struct{ cluster, server string }

// signedInTargets returns the clusters that this machine signed in to.
func (t *tka) signedInTargets() (targets []target, err error) {
	k, err := t.state()
	if err != nil {
		return nil, err
	}
	for _, s := range k.Servers {
		if s.Chosen {
			targets = append(targets, target{s.Cluster, s.URL})
		}
	}
	return targets, nil
}

// forEach calls do for each target, at most maxConcurrent at a time. It returns the outcomes in the order of targets.
func forEach[T any](ctx context.Context, t *tka, targets []target, do func(ctx context.Context, one *tka, at target) (T, error)) []outcome[T] {
	all := make([]outcome[T], len(targets))
	errs := &lockedWriter{Writer: t.Err}
	slots := make(chan struct{}, maxConcurrent)
	var wg sync.WaitGroup
	for i, at := range targets {
		all[i].target = at
		one := *t // with a separate client and flags
		one.Err = errs
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i].value, all[i].err = do(ctx, &one, at)
		})
	}
	wg.Wait()
	return all
}

// An outcome is the result for one of several clusters.
type outcome[T any] struct {
	target
	value T
	err   error
}

// commonExitCode returns the exit code for several outcomes: 0 if all succeeded, their code if all failed with the same one, and else 1.
func commonExitCode[T any](all []outcome[T]) int {
	var codes []int
	for _, o := range all {
		codes = append(codes, output.ExitCode(o.err))
	}
	switch codes = slices.Compact(codes); len(codes) {
	case 0:
		return output.ExitOK
	case 1:
		return codes[0]
	}
	return output.ExitFailed
}

// errorMessage returns the sentence of an error.
func errorMessage(err error) string { return output.AsError(err).Message }

// exitError returns nil for code 0, and otherwise an error that ends the program with that code.
func exitError(code int) error {
	if code == output.ExitOK {
		return nil
	}
	return output.SilentExit(code)
}

// loginAll signs in to every cluster that this machine signed in to before, and to those that the server of the settings verified. It
// reports each other cluster of that server's list with the reason, so that no cluster is left out silently.
func (t *tka) loginAll(ctx context.Context, lf loginFlags, set *config.Settings) error {
	targets, err := t.allTargets(ctx)
	if err != nil {
		return err
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) (loginResult, error) {
		lf := lf
		lf.cluster = at.cluster
		res, _, err := one.loginTo(ctx, lf, set)
		return res, err
	})
	type item struct {
		loginResult
		Error string `json:"error"`
	}
	var items []item
	var names []string
	var rows [][]output.Cell
	for _, o := range all {
		it := item{loginResult: o.value}
		it.meta, it.Cluster, it.Server = newMeta("Login"), cmp.Or(o.cluster, it.Cluster), cmp.Or(it.Server, o.server)
		if o.err != nil {
			it.Error = errorMessage(o.err)
			it.Namespaces, it.MissingNamespaces, it.Kubeconfig = []string{}, []string{}, []string{}
			rows = append(rows, append(output.Row(o.cluster, "", ""), output.Colored(output.Red, "failed"), output.Cell{Text: it.Error}))
		} else {
			names = append(names, it.Context)
			rows = append(rows, append(output.Row(o.cluster, it.Username, it.Role), output.Colored(output.Green, "ready"), output.Cell{Text: "until " + t.formatTime(it.Until)}))
		}
		items = append(items, it)
	}
	return t.printResult(result{object: newList("LoginList", items), names: names, code: commonExitCode(all), table: func(bool) {
		t.writeTable(false, []string{"CLUSTER", "USER", "ROLE", "STATE", ""}, nil, rows)
	}})
}

// logoutAll signs out of every cluster that this machine signed in to.
func (t *tka) logoutAll(ctx context.Context, dryRun bool) error {
	targets, err := t.signedInTargets()
	if err != nil {
		return err
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) (logoutResult, error) {
		return one.logoutOf(ctx, at.cluster, dryRun)
	})
	type item struct {
		logoutResult
		Error string `json:"error"`
	}
	var items []item
	var names []string
	for _, o := range all {
		it := item{logoutResult: o.value}
		it.meta, it.Cluster, it.Server = newMeta("Logout"), o.cluster, o.server
		it.Removed, it.Kubeconfig = nonNil(it.Removed), nonNil(it.Kubeconfig)
		if o.err != nil {
			it.Error = errorMessage(o.err)
		}
		names, items = append(names, it.Removed...), append(items, it)
	}
	return t.printResult(result{object: newList("LogoutList", items), names: names, code: commonExitCode(all), table: func(bool) {
		for _, it := range items {
			if it.Error != "" {
				t.printLine("Cannot sign out of %s: %s", it.Cluster, it.Error)
				continue
			}
			t.printLogout(it.logoutResult)
		}
	}})
}

// statusAll shows the sign-ins to all targets. If the device is signed in to some of them only, the others show as "none". If it is signed
// in to none, the exit code is 3.
func (t *tka) statusAll(ctx context.Context, targets []target) error {
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) (statusItem, error) {
		return one.statusOf(ctx, at.cluster)
	})
	var items []statusItem
	none := 0
	for i, o := range all {
		it := o.value
		switch {
		case notSignedIn(o.err):
			none++
			it = statusItem{meta: newMeta("Signin"), Server: o.server}
			it.Cluster, it.State = o.cluster, "none"
			all[i].err = nil
		case o.err != nil:
			it = statusItem{meta: newMeta("Signin"), Server: o.server, Error: errorMessage(o.err)}
			it.Cluster, it.State = o.cluster, "unknown"
		}
		it.Namespaces, it.MissingNamespaces = nonNil(it.Namespaces), nonNil(it.MissingNamespaces)
		items = append(items, it)
	}
	code := commonExitCode(all)
	if none == len(all) {
		code = output.ExitRefused
	}
	return t.showStatus(items, code)
}

// timeLeft returns the time until an RFC 3339 time, for people; "" if there is none.
func (t *tka) timeLeft(until string) string {
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return output.HumanDuration(max(0, at.Sub(t.Now())))
}
