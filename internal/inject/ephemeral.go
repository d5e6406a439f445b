package inject

import "slices"

// Ephemeral decides on ephemeral containers that are added to a running pod. old and updated are the pod in
// JSON. It acts only on pods that have the adapter. It changes only the new containers, because the API
// server allows no other change.
func Ephemeral(old, updated []byte, o Options) Verdict {
	before, err := decode(old)
	if err != nil {
		return Verdict{Outcome: Refused, Code: BadPod, Message: "the pod as it was cannot be read: " + err.Error()}
	}
	root, err := decode(updated)
	if err != nil {
		return Verdict{Outcome: Refused, Code: BadPod, Message: "the pod cannot be read: " + err.Error()}
	}
	return ephemeral(before, root, o)
}

func ephemeral(before, root map[string]any, o Options) Verdict {
	p, bad := look(root, o)
	var was *pod
	if bad == nil {
		was, bad = look(before, o)
	}
	if bad != nil {
		return Verdict{Outcome: Refused, Code: bad.code, Message: bad.message}
	}
	if !p.injected || !was.injected {
		return Verdict{Outcome: Skipped, Code: NotAsked, Message: "the pod has no adapter"}
	}
	patch, bad := p.debug(was, o)
	switch {
	case bad != nil:
		return Verdict{Outcome: Refused, Code: bad.code, Message: bad.message}
	case len(patch) == 0:
		return Verdict{Outcome: Unchanged}
	}
	return Verdict{Outcome: Patched, Patch: patch}
}

// debug connects the ephemeral containers that p has and was does not have.
func (p *pod) debug(was *pod, o Options) (Patch, *refusal) {
	w, _, err := wish(was.annotations, o.port())
	if err != nil {
		return nil, refuse(BadAnnotation, "%v", err)
	}
	p.wishes = w
	want := build(w, o)
	e := &editor{root: p.root}
	for _, m := range p.containers {
		known := slices.ContainsFunc(was.containers, func(x member) bool { return x.list == m.list && x.name == m.name })
		if m.list != "ephemeralContainers" || known {
			continue
		}
		c := members(p.spec[m.list])[m.index]
		if c["targetContainerName"] == containerName && !w.sharedPID {
			return nil, refuse(SharedProcesses, `%s would share the adapter's processes and could read the pod's real credential there; the annotation %s: "true" on the pod accepts that`, m.where, sharedPIDAnnotation)
		}
		if r := p.wayToTheRealToken(m); r != nil {
			return nil, r
		}
		if r := p.takenVariables(m); r != nil {
			return nil, r
		}
		p.lead(e, c, want, "spec", m.list, m.index)
	}
	return e.patch, nil
}
