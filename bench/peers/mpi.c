/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI's messages between two processes of one job on one host; built with
 * Debian's Open MPI (openmpi) and with its MPICH (mpich).
 *
 * The server starts mpirun, and that two stand-ins, which do nothing but leave
 * their environments in the pair's folder. Server and client take these and so
 * are ranks 0 and 1 themselves, on the cores that they were given. Both are of
 * one job, because neither system uses shared memory between jobs
 * (MPI_Comm_connect).
 *
 * Version: Open MPI 4.1.4 and MPICH 4.0.2 (Debian's).
 * Mode: MPI_Isend and MPI_Irecv at the client, MPI_Recv and MPI_Send at the
 * server, as one thread.
 * Copies: the library alone. Open MPI's BTL vader: both, in and out of
 * shared memory, up to 4 KiB; above that the receiver, once, by CMA
 * (process_vm_readv). MPICH 4 as Debian has it (ch4:ucx): both, in and out of
 * shared memory; large messages as its UCX chooses.
 * Sleeping: nobody, both poll in MPI_Recv and MPI_Wait, as always.
 * Setting: https://www.open-mpi.org/faq/?category=sm (vader and self) and
 * mpirun(1); MPICH: its defaults. The loop of osu_latency.
 */
#include <mpi.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#include "peer.h"

enum { TAG = 1, ROOM = 1 << 16 };

static const char *version(void) {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  MPI_Get_library_version(text, &length);
#ifdef MPICH
  snprintf(text, sizeof text, "MPICH %s", MPICH_VERSION);
#endif
  text[strcspn(text, ",\n")] = 0;
  return text;
}

/* ---- The job ------------------------------------------------------------ */

static void remove_folder(const char *path) {
  DIR *folder = opendir(path);
  char inside[PATH_MAX];
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
    if (entry->d_type == DT_DIR)
      remove_folder(inside);
    else
      unlink(inside);
  }
  if (folder)
    closedir(folder);
  rmdir(path);
}

/* Has mpirun start stand-ins, which end with this process, as mpirun does.
 * MPICH gets PMI_PORT, so that all that a rank needs is in its environment and
 * nothing in a descriptor. */
static void start_job(const struct peer *peer, const char *shared) {
  char program[PATH_MAX] = "", server[16];
  snprintf(server, sizeof server, "%d", getpid());
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
    die("/proc/self/exe");
  pid_t pid = fork();
  if (pid < 0)
    die("fork");
  if (pid > 0)
    return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  if (*shared)
    setenv("TMPDIR", shared, 1);
  setenv("OMPI_MCA_btl_vader_backing_directory", shared, 1);
  setenv("OMPI_MCA_pml", "ob1", 1);
  setenv("OMPI_MCA_btl", "self,vader", 1);
  setenv("OMPI_MCA_mpi_yield_when_idle", getenv("COMPARE_CORES") ? "1" : "0",
         1);
#ifdef MPICH
  execlp("mpirun.mpich", "mpirun.mpich", "-pmi-port", "-np", "2", program,
         "stand-in", peer->folder, server, shared, NULL);
#else
  execlp("mpirun.openmpi", "mpirun.openmpi", "--quiet", "--allow-run-as-root",
         "--bind-to", "none", "--host", "localhost:2", "-np", "2", program,
         "stand-in", peer->folder, server, shared, NULL);
#endif
  die("mpirun");
}

static const char *name_of(int rank) {
  return rank ? "rank-1" : "rank-0";
}

/* Leaves its environment, and waits for the end of the server, however that
 * comes. Open MPI's files are removed then. */
static int stand_in(const char *folder, pid_t server, const char *shared) {
  static char all[ROOM];
  const struct peer peer = {.folder = folder};
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  size_t length = 0;
  struct pollfd end = {(int)syscall(SYS_pidfd_open, server, 0), POLLIN, 0};
  for (char **one = environ; *one; one++) {
    size_t more = strlen(*one) + 1;
    if (length + more > sizeof all)
      return 1;
    memcpy(all + length, *one, more);
    length += more;
  }
  rank = rank ? rank : getenv("PMI_ID");
  peer_write_file(&peer, name_of(rank && *rank == '1'), all, length);
  while (end.fd >= 0 && poll(&end, 1, -1) < 0)
    ;
  remove_folder(shared);
  return 0;
}

/* What the harness has told this process itself stays. */
static void become_rank(const struct peer *peer, int rank) {
  static char all[ROOM];
  size_t length = peer_read_file(peer, name_of(rank), all, sizeof all - 1);
  for (char *one = all; one < all + length; one += strlen(one) + 1)
    if (strncmp(one, "COMPARE_", 8) != 0)
      putenv(one);
}

/* ---- The server --------------------------------------------------------- */

/* Open MPI leaves files where it is killed; MPICH does not. */
static const char *shared_folder(void) {
#ifdef MPICH
  return "";
#else
  static char path[PATH_MAX];
  snprintf(path, sizeof path, "/dev/shm/perigee-mpi-%d-XXXXXX", getpid());
  if (!mkdtemp(path))
    die(path);
  return path;
#endif
}

static void serve(const struct peer *peer) {
  start_job(peer, shared_folder());
  uint8_t *room = memory(peer->size, MAP_PRIVATE);
  become_rank(peer, 0);
  peer_ready("-");
  MPI_Init(NULL, NULL);
  for (;;) {
    MPI_Status status;
    int length;
    MPI_Recv(room, (int)peer->size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &length);
    MPI_Send(room, length, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
  }
}

/* ---- The client --------------------------------------------------------- */

struct rank {
  const struct peer *peer;
  struct peer_client *client;
  uint8_t *replies[UNDER];
  MPI_Request sent[UNDER], coming[UNDER];
};

static void submit(void *context, int slot, size_t length) {
  struct rank *rank = context;
  MPI_Irecv(rank->replies[slot], (int)rank->peer->size, MPI_BYTE, 0, TAG,
            MPI_COMM_WORLD, &rank->coming[slot]);
  MPI_Isend(rank->client->buffers[slot], (int)length, MPI_BYTE, 0, TAG,
            MPI_COMM_WORLD, &rank->sent[slot]);
}

static int collect(void *context, const uint8_t **reply, size_t *length) {
  struct rank *rank = context;
  int slot = peer_oldest(rank->client), came;
  MPI_Status status;
  MPI_Wait(&rank->coming[slot], &status);
  MPI_Get_count(&status, MPI_BYTE, &came);
  MPI_Wait(&rank->sent[slot], MPI_STATUS_IGNORE);
  *reply = rank->replies[slot];
  *length = (size_t)came;
  return slot;
}

static void call(const struct peer *peer) {
  static struct rank rank;
  static struct peer_client client;
  become_rank(peer, 1);
  MPI_Init(NULL, NULL);
  rank.peer = peer;
  rank.client = &client;
  client.context = &rank;
  client.submit = submit;
  client.collect = collect;
  peer_rooms(peer, client.buffers);
  peer_rooms(peer, rank.replies);
  peer_bursts(peer, &client);
  _exit(0); /* rank 0 does not take part in MPI_Finalize */
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {version, serve, call};
  if (argc == 5 && strcmp(argv[1], "stand-in") == 0)
    return stand_in(argv[2], (pid_t)strtol(argv[3], NULL, 10), argv[4]);
  return peer_main(argc, argv, &kind);
}
