package csi

import (
	"context"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *Driver) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, invalid("want a name and a volume")
	}
	if s := d.snapshots[d.names[r.GetName()]]; s != nil {
		if s.GetSourceVolumeId() != r.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is of another volume", r.GetName())
		}
		return &csi.CreateSnapshotResponse{Snapshot: s}, nil
	}
	v, err := d.volume(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	s := d.snapshot(v)
	d.names[r.GetName()] = s.GetSnapshotId()
	return &csi.CreateSnapshotResponse{Snapshot: s}, nil
}

func (d *Driver) snapshot(v *volume) *csi.Snapshot {
	s := &csi.Snapshot{SnapshotId: "s" + d.newID(), SourceVolumeId: v.GetVolumeId(), SizeBytes: v.GetCapacityBytes(), CreationTime: now(), ReadyToUse: true}
	d.snapshots[s.GetSnapshotId()] = s
	return s
}

func (d *Driver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, invalid("want an id")
	}
	delete(d.snapshots, r.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, nil
}

func (d *Driver) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(d.snapshots)) {
		if (r.GetSnapshotId() == "" || r.GetSnapshotId() == id) && (r.GetSourceVolumeId() == "" || r.GetSourceVolumeId() == d.snapshots[id].GetSourceVolumeId()) {
			ids = append(ids, id)
		}
	}
	ids, next, err := page(ids, r.GetStartingToken(), r.GetMaxEntries())
	reply := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids {
		reply.Entries = append(reply.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: d.snapshots[id]})
	}
	return reply, err
}

func (d *Driver) GetSnapshot(_ context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	s := d.snapshots[r.GetSnapshotId()]
	switch {
	case r.GetSnapshotId() == "":
		return nil, invalid("want an id")
	case s == nil:
		return nil, notFound("snapshot", r.GetSnapshotId())
	}
	return &csi.GetSnapshotResponse{Snapshot: s}, nil
}

func (d *Driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
		Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
	}}}}, nil
}

func (d *Driver) CreateVolumeGroupSnapshot(_ context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("want a name")
	}
	g := &csi.VolumeGroupSnapshot{CreationTime: now(), ReadyToUse: true}
	for _, id := range r.GetSourceVolumeIds() {
		v, err := d.volume(id)
		if err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots, d.snapshot(v))
	}
	g.GroupSnapshotId = "g" + d.newID()
	for _, s := range g.Snapshots {
		s.GroupSnapshotId = g.GroupSnapshotId
	}
	d.groups[g.GroupSnapshotId] = g
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

func (d *Driver) DeleteVolumeGroupSnapshot(_ context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if r.GetGroupSnapshotId() == "" {
		return nil, invalid("want an id")
	}
	for _, s := range d.groups[r.GetGroupSnapshotId()].GetSnapshots() {
		delete(d.snapshots, s.GetSnapshotId())
	}
	delete(d.groups, r.GetGroupSnapshotId())
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

func (d *Driver) GetVolumeGroupSnapshot(_ context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	g := d.groups[r.GetGroupSnapshotId()]
	switch {
	case r.GetGroupSnapshotId() == "":
		return nil, invalid("want an id")
	case g == nil:
		return nil, notFound("group snapshot", r.GetGroupSnapshotId())
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}
