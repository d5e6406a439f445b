package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

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

// signingKey returns the key that signs the audit log. If the settings name a Secret, the key is in it and stays the same across runs.
// Otherwise the key is in the node's state directory, created at the first start. An operator without a Secret that logs to standard output
// stores no key: each run generates one, and the log's first line names it.
func (p *process) signingKey(ctx context.Context, role settings.Role) (audit.Key, error) {
	if name := p.set.Audit.KeySecret; name != "" {
		secret, err := kube.NewKeySecret(p.config, p.set.Signin.SystemNamespace, name, "give the new public key to those who verify the audit log", audit.KeyFromSeed,
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

// openAuditLog opens the audit log of the process, and returns the function that closes it. The OTEL_* variables configure whether a
// collector gets a copy.
func (p *process) openAuditLog(ctx context.Context) (closeRecord func() error, err error) {
	role := settings.AccessRole // also of a process of all roles
	if slices.Contains([]settings.Role{settings.OperatorRole, settings.PlaneRole, settings.ProxyRole}, p.role) {
		role = p.role
	}
	key, err := p.signingKey(ctx, role)
	if err != nil {
		return nil, err
	}
	export, err := otlp.New(ctx, otlp.Config{Service: "tailplaned", Version: p.cluster.Version, Cluster: p.cluster.Name, Getenv: os.Getenv, Log: p.log})
	if err != nil {
		return nil, err
	}
	c := audit.Config{Path: p.set.Audit.File, Cluster: p.cluster.Name, ClusterID: p.cluster.ID, Role: string(role), Software: p.cluster.Version,
		Key: key, Required: p.set.Audit.Required, Log: p.log, Now: time.Now}
	if c.Path == "-" {
		c.Path, c.Writer = "", os.Stdout
	}
	if export != nil {
		c.Export = export.Export
	}
	var notes []auditNote
	witness, err := p.newAuditWitness(role)
	if err != nil {
		return nil, err
	}
	if c.Path != "" {
		c.Prev, notes = witness.predecessor(ctx, c.Role)
	}
	if p.record, err = audit.Open(c); err != nil {
		return nil, fmt.Errorf("audit.file: %w", err)
	}
	p.log.Info("the audit log is open", "key", key.Public().String())
	witness.record, p.witness = p.record, witness
	p.metrics.AddAudit(p.record.Stats, func() int { return int(witness.count.Load()) })
	if c.Path != "" {
		witness.begin(ctx, notes)
	}
	return func() error {
		err := p.record.Close()
		witness.end(ctx)
		if export == nil {
			return err
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTime)
		defer cancel()
		return errors.Join(err, export.Close(last))
	}, nil
}

// recordEndedSignin counts and records a sign-in that ended without a request to the access server.
func (p *process) recordEndedSignin(end controller.EndedSignin) {
	p.metrics.CountEnded(end.Cause)
	e := signinEntry(end.Signin, end.Reason)
	e.Args["cause"] = string(end.Cause)
	p.recordAction(e)
}

// signinEntry returns the entry for the end of a sign-in.
func signinEntry(s signin.Signin, reason string) audit.Entry {
	args := map[string]string{"login": s.Owner.Login, "device": s.Owner.DeviceName, "role": string(s.Binds.Role())}
	if s.Owner.Issuer != "" {
		args["issuer"], args["subject"] = s.Owner.Issuer, s.Owner.Subject
	}
	return audit.Entry{Verb: access.SigninEnd, Object: s.Name, Reason: reason, Args: args}
}

// recordSweep counts and records the removal of an object that belongs to no sign-in.
func (p *process) recordSweep(kind, namespace, name string) {
	p.metrics.CountSwept()
	args := map[string]string{"kind": kind}
	if namespace != "" {
		args["namespace"] = namespace
	}
	p.recordAction(audit.Entry{Verb: access.SigninSweep, Object: name, Reason: "The object belongs to no sign-in.", Args: args})
}

// recordAction records an action that the process took without a request. Without a node, the actor is the host name; in a pod, that is the
// pod's name.
func (p *process) recordAction(e audit.Entry) {
	e.Time, e.Surface, e.Result = time.Now(), "process", audit.Done
	e.RequestID = audit.NewID(e.Time)
	if e.Actor.Node == "" {
		host, err := os.Hostname()
		e.Actor.Node = cmp.Or(host, "operator")
		if err != nil {
			p.log.Warn("the host name is unknown", "err", err)
		}
	}
	if err := p.record.Write(e); err != nil {
		p.log.Error("an audit entry is lost", "audit", e.RequestID, "err", err)
	}
}
