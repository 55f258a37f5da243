/* A fixed pool of native threads for one job of many units at a time.
 *
 * The caller works too. Workers take units from a shared counter, so who computes a unit is chance; what a
 * unit computes must not depend on it. Idle workers sleep on a condition variable: nothing spins. A process
 * forked from one that had workers has none and is told so: its locks may be held by threads that are gone.
 */
#ifndef RONDEL_POOL_H
#define RONDEL_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#define POOL_MOST 256
#define POOL_FORKED (-1)

typedef void (*pool_unit)(void *context, int64_t unit, int worker);

static struct {
    pthread_mutex_t turn; /* one job at a time, and changes of size between jobs */
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t begin, end;
    pthread_t workers[POOL_MOST];
    int started;     /* workers that run */
    int threads;     /* wanted, the caller included */
    pid_t owner;     /* who started them */
    int stopping;
    uint64_t job;    /* number of the job at hand */
    int open;        /* it still has units to give out */
    int active;      /* workers inside it */
    pool_unit unit;
    void *context;
    int64_t count;
    int most;        /* threads that it may use: its caller has made room for so many */
    _Atomic int64_t next;
} pool = {
    .turn = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .begin = PTHREAD_COND_INITIALIZER,
    .end = PTHREAD_COND_INITIALIZER,
    .threads = 1,
};

static void pool_take_units(int worker)
{
    for (;;) {
        int64_t unit = atomic_fetch_add(&pool.next, 1);
        if (unit >= pool.count)
            return;
        pool.unit(pool.context, unit, worker);
    }
}

static void *pool_work(void *argument)
{
    int number = (int)(intptr_t)argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.stopping && !(pool.open && pool.job != seen && number < pool.most))
            pthread_cond_wait(&pool.begin, &pool.lock);
        if (pool.stopping)
            break;
        seen = pool.job;
        pool.active++;
        pthread_mutex_unlock(&pool.lock);
        pool_take_units(number);
        pthread_mutex_lock(&pool.lock);
        if (--pool.active == 0)
            pthread_cond_signal(&pool.end);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static int pool_threads(void) { return pool.threads; }

static int pool_forked(void)
{
    return pool.started > 0 && pool.owner != getpid();
}

/* With `turn` held. */
static void pool_stop_workers(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.stopping = 1;
    pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < pool.started; i++)
        pthread_join(pool.workers[i], NULL);
    pool.started = 0;
    pool.stopping = 0;
}

/* How many threads a job may use; workers beyond that end. 0, or POOL_FORKED. */
static int pool_resize(int threads)
{
    if (pool_forked())
        return POOL_FORKED;
    pthread_mutex_lock(&pool.turn);
    pool_stop_workers();
    pool.threads = threads < 1 ? 1 : threads > POOL_MOST ? POOL_MOST : threads;
    pthread_mutex_unlock(&pool.turn);
    return 0;
}

/* Call unit(context, i, worker) for every i below count, worker below `most`, whatever the pool's size is by
 * now. 0, or POOL_FORKED. */
static int pool_run(pool_unit unit, void *context, int64_t count, int most)
{
    if (pool_forked())
        return POOL_FORKED;
    if (most <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++)
            unit(context, i, 0);
        return 0;
    }
    pthread_mutex_lock(&pool.turn);
    while (pool.started < pool.threads - 1) {
        void *argument = (void *)(intptr_t)(pool.started + 1);
        if (pthread_create(&pool.workers[pool.started], NULL, pool_work, argument) != 0)
            break; /* fewer hands, the same answer */
        pool.owner = getpid();
        pool.started++;
    }
    pthread_mutex_lock(&pool.lock);
    pool.unit = unit;
    pool.context = context;
    pool.count = count;
    pool.most = most;
    atomic_store(&pool.next, 0);
    pool.job++;
    pool.open = 1;
    /* Not a signal each: one could wake a worker beyond `most`. */
    pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.lock);
    pool_take_units(0);
    pthread_mutex_lock(&pool.lock);
    pool.open = 0;
    while (pool.active > 0)
        pthread_cond_wait(&pool.end, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.turn);
    return 0;
}

#endif
