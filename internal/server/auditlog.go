package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/audit/otlp"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// exportTime is how long a collector may take for the last audit entries.
const exportTime = 5 * time.Second

// An auditLog is the single audit log of a process with several parts. The first part that needs it opens it, and the last part that is done
// closes it.
type auditLog struct {
	mu     sync.Mutex
	users  int
	record *audit.Log
	close  func() error
}

// get returns the audit log and a function that the caller must call when it is done.
func (b *auditLog) get(ctx context.Context, config *rest.Config, p *process, info signin.ClusterInfo) (*audit.Log, func() error, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users == 0 {
		record, closeRecord, err := openAuditLog(ctx, config, p, info)
		if err != nil {
			return nil, nil, err
		}
		b.record, b.close = record, closeRecord
	}
	b.users++
	return b.record, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.users--; b.users > 0 {
			return nil
		}
		return b.close()
	}, nil
}

// signingKey returns the key that signs the audit log. If the settings name a Secret, the key is in it and stays the same across runs.
// Otherwise the key is in the node's state directory, created at the first start. An operator without a Secret that logs to standard output
// stores no key: each run generates one, and the log's first line names it.
func signingKey(ctx context.Context, config *rest.Config, p *process, role settings.Role) (audit.Key, error) {
	if name := p.set.Audit.KeySecret; name != "" {
		secret, err := kube.NewKeySecret(config, p.set.Signin.SystemNamespace, name, "give the new public key to those who verify the audit log", audit.KeyFromSeed,
			func(k audit.Key) string { return k.Public().String() })
		if err != nil {
			return audit.Key{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		key, err := secret.Load(ctx)
		if err != nil {
			return audit.Key{}, fmt.Errorf("audit.keySecret: %w", err)
		}
		return key, nil
	}
	if role == settings.OperatorRole && p.set.Audit.File == "-" {
		return audit.GenerateKey(), nil
	}
	dir := p.set.Tailnet.StateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return audit.Key{}, fmt.Errorf("tailnet.stateDir: %w", err)
	}
	return audit.LoadKey(filepath.Join(dir, "audit.key"))
}

// openAuditLog opens the audit log, and returns it together with the function that closes it. The OTEL_* variables configure whether a
// collector gets a copy.
func openAuditLog(ctx context.Context, config *rest.Config, p *process, info signin.ClusterInfo) (record *audit.Log, closeRecord func() error, err error) {
	role := settings.AccessRole
	if p.role == settings.OperatorRole || p.role == settings.PlaneRole {
		role = p.role
	}
	key, err := signingKey(ctx, config, p, role)
	if err != nil {
		return nil, nil, err
	}
	export, err := otlp.New(ctx, otlp.Config{Service: "tailplaned", Version: info.Version, Cluster: info.Name, Getenv: os.Getenv, Log: p.log})
	if err != nil {
		return nil, nil, err
	}
	c := audit.Config{Path: p.set.Audit.File, Cluster: info.Name, ClusterID: info.ID, Role: string(role), Software: info.Version,
		Key: key, Required: p.set.Audit.Required, Log: p.log, Now: time.Now}
	if c.Path == "-" {
		c.Path, c.Writer = "", os.Stdout
	}
	if export != nil {
		c.Export = export.Export
	}
	if record, err = audit.Open(c); err != nil {
		return nil, nil, fmt.Errorf("audit.file: %w", err)
	}
	p.log.Info("the audit log is open", "key", key.Public().String())
	p.metrics.AddAudit(record.Stats)
	return record, func() error {
		err := record.Close()
		if export == nil {
			return err
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTime)
		defer cancel()
		return errors.Join(err, export.Close(last))
	}, nil
}

// recordEndedSignin counts and records a sign-in that ended without a request to the access server.
func recordEndedSignin(p *process, write func(audit.Entry) error, end controller.EndedSignin) {
	p.metrics.CountEnded(end.Cause)
	e := signinEntry(end.Signin, end.Reason)
	e.Args["cause"] = string(end.Cause)
	recordAction(p, write, e)
}

// signinEntry returns the entry for the end of a sign-in.
func signinEntry(s signin.Signin, reason string) audit.Entry {
	return audit.Entry{Verb: access.SigninEnd, Object: s.Name, Reason: reason,
		Args: map[string]string{"login": s.Owner.Login, "device": s.Owner.DeviceName, "role": string(s.Role)}}
}

// recordSweep counts and records the removal of an object that belongs to no sign-in.
func recordSweep(p *process, write func(audit.Entry) error, kind, namespace, name string) {
	p.metrics.CountSwept()
	args := map[string]string{"kind": kind}
	if namespace != "" {
		args["namespace"] = namespace
	}
	recordAction(p, write, audit.Entry{Verb: access.SigninSweep, Object: name, Reason: "The object belongs to no sign-in.", Args: args})
}

// recordAction records an action that the process took without a request. Without a node, the actor is the host name; in a pod, that is the
// pod's name.
func recordAction(p *process, write func(audit.Entry) error, e audit.Entry) {
	e.Time, e.Surface, e.Result = time.Now(), "process", audit.Done
	e.RequestID = audit.NewID(e.Time)
	if e.Actor.Node == "" {
		host, err := os.Hostname()
		e.Actor.Node = cmp.Or(host, "operator")
		if err != nil {
			p.log.Warn("the host name is unknown", "err", err)
		}
	}
	if err := write(e); err != nil {
		p.log.Error("an audit entry is lost", "audit", e.RequestID, "err", err)
	}
}
